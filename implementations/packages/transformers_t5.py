# /// script
# requires-python = ">=3.11"
# dependencies = ["transformers==5.23.0", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["T5"]
# conventions = { default-scale = "one" }
# ///
"""Transformers: the attention module of T5 in its eager form, without its relative positions."""

import torch
from transformers import T5Config
from transformers.models.t5.modeling_t5 import T5Attention

Tensor = torch.Tensor
Answer = tuple[Tensor, Tensor]


class T5(T5Attention):
    """T5Attention, whose scores are not scaled."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__(
            T5Config(d_model=d_model, num_heads=num_heads, d_kv=d_model // num_heads, attn_implementation="eager")
        )

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None = None, key_value_states: Tensor | None = None
    ) -> Answer:
        """`mask`: (B, 1, Lq, Lk), added."""
        return super().forward(hidden_states, mask, key_value_states)[:2]  # type: ignore[no-any-return]


__all__ = ["T5"]
