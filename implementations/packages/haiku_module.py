# /// script
# requires-python = ">=3.11"
# dependencies = ["dm-haiku==0.0.17", "jax==0.10.2", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["MultiHeadAttention"]
# ///
"""Haiku: its MultiHeadAttention."""

from haiku import MultiHeadAttention

__all__ = ["MultiHeadAttention"]
