# /// script
# requires-python = ">=3.11"
# dependencies = ["monai==1.6.1", "einops==0.8.2", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["SABlock", "CrossAttentionBlock"]
# ///
"""MONAI: the attention blocks of its transformers."""

from monai.networks.blocks.crossattention import CrossAttentionBlock
from monai.networks.blocks.selfattention import SABlock

__all__ = ["CrossAttentionBlock", "SABlock"]
