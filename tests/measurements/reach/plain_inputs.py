"""Keys and values however they are stored, before the steps of attention, which take them plain."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters import paging, quantising
from attention_conformance.implementations.adapters.quantising import QuantisedCall
from attention_conformance.implementations.builtin.stepwise.quantised_steps import multiply, numbers, spread
from attention_conformance.implementations.builtin.stepwise.steps import accumulator

PLACES = paging.OPTIONS - {"valid_lens"}
"""Options that say where keys and values lie, which the suite passes in their order as well."""


def taking_stored(whole: Callable[..., Any]) -> Callable[..., Any]:
    """Attention that takes pages, codes and latents too: keys and values are made of them first."""

    def dequantised(query: Tensor, key: Tensor, value: Tensor, *scales: Tensor, **options: Any) -> Any:
        wide = accumulator(query.dtype)
        rows = (numbers(key, wide), numbers(value, wide))
        key, value = (multiply(r, spread(s, r).to(wide)) for r, s in zip(rows, scales, strict=True))
        return whole(query, key, value, **options)

    def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        plain = {name: option for name, option in options.items() if name not in PLACES}
        if "w_uk" in plain:
            key, value = expanded(key, plain.pop("w_uk"), plain.pop("w_uv"))
        if quantising.OPTIONS & plain.keys():
            return QuantisedCall(dequantised)(query, key, value, **plain)
        return whole(query, key, value, **plain)

    return attention


def expanded(rows: Tensor, up_key: Tensor, up_value: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (B, 1, Lk, r + d_rope) -> key (B, H, Lk, d_k) and value (B, H, Lk, d_v)."""
    heads, _, rank = up_key.shape
    key, value = (rows[..., :rank] @ up.transpose(-1, -2) for up in (up_key, up_value))
    return torch.cat([key, rows[..., rank:].expand(-1, heads, -1, -1)], -1), value
