"""For the functions of Transformers, which read groups and sinks from the module that calls them."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

Tensor = torch.Tensor


def called_by_module(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, (B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v); then weights, if any.

    Models give masks of four axes.
    """

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
        sinks: Tensor | None = None,
        enable_gqa: bool = False,
        **options: Any,
    ) -> Any:
        logits = query.new_full((query.shape[1],), -math.inf) if sinks is None else sinks  # which takes no share
        groups = query.shape[1] // key.shape[1]
        module = SimpleNamespace(num_key_value_groups=groups, training=False, is_causal=False, sinks=logits)
        scaling = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
        mask = None if attn_mask is None else attn_mask.reshape((1,) * (4 - attn_mask.ndim) + attn_mask.shape)
        output, weights = function(module, query, key, value, mask, scaling=scaling, **options)
        output = output.transpose(1, 2)
        return output if weights is None else (output, weights)

    return attention
