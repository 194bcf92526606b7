"""Interfaces of shipped kernels, recognised by the names of their parameters."""
