# /// script
# requires-python = ">=3.11"
# dependencies = ["equinox==0.13.8", "jax==0.10.2", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["MultiheadAttention"]
# ///
"""Equinox: its MultiheadAttention, which takes one sample at a time."""

from equinox.nn import MultiheadAttention

__all__ = ["MultiheadAttention"]
