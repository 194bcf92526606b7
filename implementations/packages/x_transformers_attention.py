# /// script
# requires-python = ">=3.11"
# dependencies = ["x-transformers==2.31.10", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["Attention"]
# conventions = { group-order = "tiled" }
# ///
"""x-transformers: its Attention module; query heads share key heads in turn."""

from x_transformers import Attention

__all__ = ["Attention"]
