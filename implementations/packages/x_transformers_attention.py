# /// script
# requires-python = ">=3.11"
# dependencies = ["x-transformers==2.31.10", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["Attention"]
# conventions = { group-order = "tiled" }
#
# [tool.attention-conformance.findings]
# Attention = """
# Four masks that its forward takes, mask, context_mask, mem_mask and additional_key_value_mask, and its cache are of
# forms that the suite does not know: they are not judged.
# """
# ///
"""x-transformers: its Attention module; query heads share key heads in turn."""

from x_transformers import Attention

__all__ = ["Attention"]
