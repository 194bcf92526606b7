"""The adapter: how attention-conformance calls our attention, and what we claim of it."""

from __future__ import annotations

from my_attention import attention
from torch import Tensor

from attention_conformance import Claims, Conventions, Feature, Implementation, Polarity, Scope, torch_op


def call(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """Takes and returns axes (B, H, L, d), as the suite has them."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return attention(q, k, v, hidden=attn_mask, causal=is_causal).transpose(1, 2)


adapter = Implementation(
    name="my.attention",
    claims=Claims(
        scope=Scope.OP,
        features=frozenset(
            {
                Feature.CORE,
                Feature.HEADS,
                Feature.CROSS,
                Feature.KEY_VALUE,
                Feature.VALUE_WIDTH,
                Feature.BOOL_MASK,
                Feature.CAUSAL,
                Feature.GRADIENTS,
            }
        ),
        conventions=Conventions(bool_mask=Polarity.MASKED_OUT),
        dtypes=("float64", "float32"),
    ),
    run=torch_op(call, polarity=Polarity.MASKED_OUT),
)
