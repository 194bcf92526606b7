"""Implementations that the suite brings: what it is tried on, and what others are compared with."""
