"""Mistakes of chapter 11: right answers with wrong gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from implementations.defects.record import breaks
from implementations.defects.steps import INFINITY, Steps, add_mask, score


class Distorted(torch.autograd.Function):
    """The tensor itself, whose gradient is spoilt on its way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spoil: Any) -> Tensor:
        ctx.spoil = spoil
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.spoil(gradient), None


def distorted(x: Tensor, spoil: Any) -> Tensor:
    """The tensor itself; `spoil` is applied to its gradient."""
    found: Tensor = Distorted.apply(x, spoil)  # type: ignore[no-untyped-call]
    return found


@breaks("gradients.query", step="score", holds=("gradients.key", "gradients.value", "scores.dot-product"))
def query_gradient_lost(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query.detach(), key, by) + 0.0 * query.sum()


@breaks("gradients.key", step="score", holds=("gradients.query", "gradients.value", "scores.dot-product"))
def key_gradient_without_scale(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, distorted(key, lambda gradient: gradient / by), by)


@breaks("gradients.query", "gradients.key", step="softmax", holds=("gradients.value", "softmax.over-keys"))
def row_sum_left_out(scores: Tensor) -> Tensor:
    """dS = P * dP: the derivative of an exponential, and not of a softmax."""
    shift = torch.logsumexp(scores, -1, keepdim=True).detach()
    return (scores - shift.where(shift > -INFINITY, 0.0)).exp()


@breaks("gradients.value", step="mix", holds=("gradients.query", "gradients.key", "values.weighted-sum"))
def value_gradient_halved(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ distorted(value, lambda gradient: gradient / 2)


@breaks("gradients.float-mask", step="add_mask", holds=("gradients.query", "masks.float"))
def mask_gradient_scaled(scores: Tensor, mask: Tensor) -> Tensor:
    spoilt = mask if mask.dtype is torch.bool else distorted(mask, lambda gradient: gradient / 2)
    return add_mask(scores, spoilt)


@breaks("gradients.empty-row", holds=("masks.empty-row-bool", "gradients.query"))
def nan_replaced_after_softmax(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def added(scores: Tensor, mask: Tensor) -> Tensor:
        return scores + (mask.to(scores.dtype).log() if mask.dtype is torch.bool else mask)

    steps = Steps(add_mask=added, softmax=lambda scores: torch.softmax(scores, -1).nan_to_num())
    return steps(query, key, value, **options)


@breaks("gradients.alone", raises=True, holds=("gradients.query", "gradients.key", "gradients.value"))
def graph_only_for_queries(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    with torch.set_grad_enabled(query.requires_grad):
        return Steps()(query, key, value, **options)


@breaks("gradients.cotangent", raises=True, holds=("gradients.query", "gradients.key", "gradients.value"))
def cotangent_read_as_contiguous(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def flat(x: Tensor) -> Tensor:
        return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride())

    return distorted(Steps()(query, key, value, **options), flat)
