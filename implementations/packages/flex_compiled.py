# /// script
# requires-python = ">=3.11"
# dependencies = ["torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["flex_compiled"]
# ///
"""Torch: flex_attention, compiled by torch.compile and a C++ compiler, in a few shapes."""

from attention_conformance.implementations.builtin.flex import COMPILED, missing

if absent := missing():
    raise ImportError(absent)
flex_compiled = COMPILED
__all__ = ["flex_compiled"]
