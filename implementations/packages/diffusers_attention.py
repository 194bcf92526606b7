# /// script
# requires-python = ">=3.11"
# dependencies = ["diffusers==0.42.1", "transformers==5.23.0", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["Attention"]
# ///
"""Diffusers: the Attention module of its models, with its default processor."""

from diffusers.models.attention_processor import Attention

__all__ = ["Attention"]
