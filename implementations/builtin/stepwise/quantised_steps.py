"""Attention over codes of 8 bits in steps: right as it is, and wrong in one place if a step is replaced."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import (
    accumulator,
    add_bottom_right,
    repeat_kv,
    softmax,
)


def numbers(codes: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that codes are."""
    return codes.to(dtype)


def spread(scale: Tensor, rows: Tensor) -> Tensor:
    """(1,), (Hk,), (B, Hk), (B, Hk, Lk) or (B, Hk, blocks), as it broadcasts to rows (B, Hk, Lk, d)."""
    if scale.ndim < 3:
        return scale[..., None, None]
    return of_blocks(scale, rows.shape[2])[..., None]


def of_blocks(scale: Tensor, length: int) -> Tensor:
    """(B, Hk, blocks) -> (B, Hk, Lk): blocks of as many tokens, but for the last."""
    blocks = scale.shape[-1]
    return scale.repeat_interleave(-(-length // max(1, blocks)), -1)[..., :length]


def multiply(rows: Tensor, scale: Tensor) -> Tensor:
    """Rows (B, Hk, Lk, d) by what broadcasts to them."""
    return rows * scale


@dataclass(frozen=True)
class QuantisedSteps:
    """Attention over keys and values that are codes: dequantised, and multiplied."""

    numbers: Callable[[Tensor, torch.dtype], Tensor] = numbers
    spread: Callable[[Tensor, Tensor], Tensor] = spread
    scale_keys: Callable[[Tensor, Tensor], Tensor] = multiply
    scale_values: Callable[[Tensor, Tensor], Tensor] = multiply

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_scale: Tensor,
        value_scale: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        """(B, H, Lq, d_v).

        Args:
            query: (B, H, Lq, d_k).
            key: (B, Hk, Lk, d_k) codes: int8, float8_e4m3fn or float8_e5m2.
            value: (B, Hk, Lk, d_v) codes.
            key_scale: (1,), (Hk,), (B, Hk), (B, Hk, Lk) or (B, Hk, blocks), by which codes are multiplied.
            value_scale: the same.
            is_causal: no query sees a later key; the last query stands at the last key.
            scale: multiplies the scores; None is 1 / sqrt(d_k).
        """
        wide, heads = accumulator(query.dtype), query.shape[1]
        keys, values = self.numbers(key, wide), self.numbers(value, wide)
        keys = self.scale_keys(keys, self.spread(key_scale, keys).to(wide))
        values = self.scale_values(values, self.spread(value_scale, values).to(wide))
        keys, values = repeat_kv(keys, heads), repeat_kv(values, heads)
        scores = query.to(wide) @ keys.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
        scores = add_bottom_right(scores) if is_causal else scores
        return (softmax(scores) @ values).to(query.dtype)
