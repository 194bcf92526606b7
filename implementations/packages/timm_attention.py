# /// script
# requires-python = ">=3.11"
# dependencies = ["timm==1.0.31", "torch==2.13.0", "torchvision==0.28.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["Attention", "AttentionRope"]
# ///
"""timm: the attention of its vision transformers, and the one that may rotate."""

from attention_conformance.implementations.packages._no_cuda_operators import without_operators

with without_operators("torchvision"):
    from timm.layers.attention import Attention, AttentionRope

__all__ = ["Attention", "AttentionRope"]
