"""Timing, and what is said about it."""
