"""Adapters: a function or module of torch, NumPy or JAX becomes an implementation in a few lines."""
