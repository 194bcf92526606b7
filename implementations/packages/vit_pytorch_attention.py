# /// script
# requires-python = ">=3.11"
# dependencies = ["vit-pytorch==1.26.11", "torch==2.13.0", "torchvision==0.28.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["Attention", "SimpleAttention"]
# ///
"""vit-pytorch: the attention of ViT and of SimpleViT, norms before it included."""

from attention_conformance.implementations.packages._no_cuda_operators import without_operators

with without_operators("torchvision"):
    from vit_pytorch.simple_vit import Attention as SimpleAttention
    from vit_pytorch.vit import Attention

__all__ = ["Attention", "SimpleAttention"]
