# /// script
# requires-python = ">=3.11"
# dependencies = ["transformers==5.23.0", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["gpt_oss"]
# ///
"""Transformers: the eager form of gpt-oss, whose heads have a sink each."""

import math
from types import SimpleNamespace

import torch
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from attention_conformance import PLAIN_FEATURES, Claims, Conventions, Feature, Implementation, Scope, torch_op

LEFT_OUT = {Feature.BOOL_MASK, Feature.CAUSAL}
"""Masks are added, and hold the future."""
ADDED = {Feature.GRADIENTS, Feature.MASK_GRADIENT, Feature.VIEWS, Feature.GROUPED, Feature.SINKS}


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
    sinks: torch.Tensor | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """(B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v); no sinks are sinks of minus infinity."""
    given = query.new_full((query.shape[1],), -math.inf) if sinks is None else sinks
    module = SimpleNamespace(num_key_value_groups=query.shape[1] // key.shape[1], training=False, sinks=given)
    scaling = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    output: torch.Tensor = eager_attention_forward(module, query, key, value, attn_mask, scaling)[0]
    return output.transpose(1, 2)


gpt_oss = Implementation(
    "transformers.eager.gpt_oss",
    Claims(Scope.OP, PLAIN_FEATURES - LEFT_OUT | ADDED, Conventions().claiming({"empty-row": "nan"})),
    torch_op(attention),
    "of gpt-oss, with sinks",
)
