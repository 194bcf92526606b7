# /// script
# requires-python = ">=3.11"
# dependencies = ["labml-nn==0.5.1", "torch==2.13.0", "torchvision==0.28.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["MultiHeadAttention"]
# ///
"""labml-nn: the annotated MultiHeadAttention, with the length first."""

from labml_nn.transformers.mha import MultiHeadAttention

__all__ = ["MultiHeadAttention"]
