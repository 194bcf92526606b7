# /// script
# requires-python = ">=3.11"
# dependencies = ["flax==0.12.8", "jax==0.10.2", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["MultiHeadAttention", "MultiHeadDotProductAttention"]
# ///
"""Flax: the modules of its two interfaces, nnx and linen."""

from flax.linen import MultiHeadDotProductAttention
from flax.nnx import MultiHeadAttention

__all__ = ["MultiHeadAttention", "MultiHeadDotProductAttention"]
