# /// script
# requires-python = ">=3.11"
# dependencies = ["transformers==5.23.0", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["BertSelfAttention", "GPT2Attention", "ViTAttention"]
#
# [tool.attention-conformance.findings]
# BertSelfAttention = """
# In part, as its `past_key_values` is an object of a class of Transformers, which the suite cannot make.
# """
# GPT2Attention = """
# In part, as its `past_key_values` is an object of a class of Transformers, which the suite cannot make, and its
# `encoder_attention_mask` is for attention over the states of an encoder, for which it has to be built.
# """
# ///
"""Transformers: attention modules of three models, in their eager form."""

from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
from transformers.models.vit.modeling_vit import ViTAttention

__all__ = ["BertSelfAttention", "GPT2Attention", "ViTAttention"]
