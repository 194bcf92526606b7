# /// script
# requires-python = ">=3.11"
# dependencies = ["perceiver-pytorch==0.11.0", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["Attention"]
# ///
"""perceiver-pytorch: the attention of its Perceiver, to itself or to a context."""

from perceiver_pytorch.perceiver_pytorch import Attention

__all__ = ["Attention"]
