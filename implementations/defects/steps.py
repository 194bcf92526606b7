"""Attention in steps: right as it stands, and wrong in one place once a step is replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Softmax: TypeAlias = Callable[[Tensor], Tensor]
INFINITY = float("inf")


def factor(query: Tensor, scale: float | None) -> float:
    """The scale given, or 1/sqrt(d_k)."""
    return query.shape[-1] ** -0.5 if scale is None else scale


def score(query: Tensor, key: Tensor, by: float) -> Tensor:
    return query @ key.transpose(-1, -2) * by


def add_mask(scores: Tensor, mask: Tensor) -> Tensor:
    """A boolean mask keeps where it is True, a float mask is added."""
    if mask.dtype is torch.bool:
        return scores.masked_fill(~mask, -INFINITY)
    return scores.masked_fill(mask == -INFINITY, -INFINITY) + mask


def add_padding(scores: Tensor, padding: Tensor) -> Tensor:
    """(B, Lk), True = real."""
    return scores.masked_fill(~padding[:, None, None, :], -INFINITY)


def add_causal(scores: Tensor) -> Tensor:
    """Top-left."""
    return scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -INFINITY)


def softmax(scores: Tensor) -> Tensor:
    """Over the keys; zeros for a row of minus infinities, whose gradient is 0."""
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    return torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, scores), -1))


def mix(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value


def log_sum_exp(scores: Tensor) -> Tensor:
    """Over the keys; minus infinity for a row of minus infinities, whose gradient is 0."""
    empty = (scores == -INFINITY).all(-1)
    return torch.where(empty, -INFINITY, torch.logsumexp(torch.where(empty[..., None], 0.0, scores), -1))


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """float32 for half types."""
    return torch.float32 if dtype.itemsize < 4 else dtype


@dataclass(frozen=True)
class Steps:
    """Scaled dot-product attention; if `wide`, half types are worked on in float32 and rounded once at the end."""

    wide: bool = True
    factor: Callable[[Tensor, float | None], float] = factor
    score: Callable[[Tensor, Tensor, float], Tensor] = score
    add_mask: Callable[[Tensor, Tensor], Tensor] = add_mask
    add_padding: Callable[[Tensor, Tensor], Tensor] = add_padding
    add_causal: Callable[[Tensor], Tensor] = add_causal
    softmax: Softmax = softmax
    mix: Callable[[Tensor, Tensor], Tensor] = mix
    log_sum_exp: Softmax = log_sum_exp

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        return self.answer(query, key, value, attn_mask, key_padding_mask, is_causal, scale)[0]

    def answer(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output, weights and log-sum-exp."""
        dtype = query.dtype
        q, k, v = (x.to(accumulator(dtype) if self.wide else dtype) for x in (query, key, value))
        scores = self.score(q, k, self.factor(query, scale))
        if attn_mask is not None:
            scores = self.add_mask(scores, attn_mask)
        if key_padding_mask is not None:
            scores = self.add_padding(scores, key_padding_mask)
        if is_causal:
            scores = self.add_causal(scores)
        weights = self.softmax(scores)
        answer = self.mix(weights, v), weights, self.log_sum_exp(scores)
        output, p, lse = (x.to(dtype) for x in answer)
        return output, p, lse
