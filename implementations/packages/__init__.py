"""Implementations of other packages, a file each, which is loaded in an environment of its own.

Each file begins with its requirements as inline metadata (PEP 723), and names its implementations there.
"""
