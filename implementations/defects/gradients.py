"""Mistakes of chapter 11: right answers with wrong gradients."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.layer import Layer, Projected
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps
from attention_conformance.implementations.defects.breaking import CRASH, GRADIENT, PRECISION, breaks, breaks_layer
from attention_conformance.implementations.defects.shapes import flat

FORWARD = ("gradients.query", "gradients.key", "gradients.value")


class Distorted(torch.autograd.Function):
    """A function of a tensor, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spoil: Any, forward: Any) -> Any:
        ctx.spoil = spoil
        return forward(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.spoil(*gradients), None, None


def distorted(
    x: Tensor, spoil: Callable[[Tensor], Tensor], forward: Callable[[Tensor], Tensor] = torch.clone
) -> Tensor:
    """The tensor itself, or what `forward` makes of it; `spoil` is applied to the gradient."""
    result: Tensor = Distorted.apply(x, spoil, forward)  # type: ignore[no-untyped-call]
    return result


breaks_gradients = partial(breaks, severity=GRADIENT)
breaks_projected = partial(breaks_layer, step="projected", severity=GRADIENT)


@breaks_gradients("gradients.query", step="score", holds=("gradients.key", "gradients.value", "scores.dot-product"))
def query_gradient_lost(query: Tensor, key: Tensor, by: float) -> Tensor:
    return correct.score(query.detach(), key, by) + 0.0 * query.sum()


@breaks_gradients("gradients.query", holds=("gradients.key", "gradients.value", "scores.scale-explicit"))
def query_gradient_by_the_default_scale(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    by = correct.factor(query, options.get("scale")) or 1.0
    rotated = distorted(query, lambda gradient: gradient * (correct.factor(query, None) / by))
    return Steps()(rotated, key, value, **options)


@breaks_gradients("gradients.key", step="score", holds=("gradients.query", "gradients.value", "scores.dot-product"))
def key_gradient_without_scale(query: Tensor, key: Tensor, by: float) -> Tensor:
    return correct.score(query, distorted(key, lambda gradient: gradient / by if by else gradient), by)


@breaks_gradients("gradients.key", holds=("gradients.query", "gradients.value", "relations.permute-heads"))
def key_gradient_of_the_first_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    first = torch.arange(key.shape[1])[:, None, None] == 0
    return Steps()(query, distorted(key, lambda gradient: gradient * first), value, **options)


@breaks_gradients("gradients.query", "gradients.key", step="softmax", holds=("gradients.value", "softmax.over-keys"))
def row_sum_left_out(scores: Tensor) -> Tensor:
    shift = torch.logsumexp(scores, -1, keepdim=True).detach()
    return (scores - shift.where(shift > -INFINITY, 0.0)).exp()


@breaks_gradients("shapes.large", holds=(*FORWARD, "shapes.tile-edges"))
def gradient_of_later_tiles_lost(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    read = torch.arange(key.shape[-2])[:, None] < 128
    key, value = (distorted(x, lambda gradient: gradient * read) for x in (key, value))
    return Steps()(query, key, value, **options)


@breaks_gradients("gradients.query", "gradients.key", step="softmax", holds=("gradients.value", "softmax.over-keys"))
def weights_detached(scores: Tensor) -> Tensor:
    return correct.softmax(scores).detach()


@breaks_gradients("gradients.value", step="mix", holds=("gradients.query", "gradients.key", "values.weighted-sum"))
def value_gradient_halved(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ distorted(value, lambda gradient: gradient / 2)


@breaks_gradients("gradients.masked", holds=("masks.bool", "gradients.query"))
def value_gradient_by_unmasked_weights(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    output = Steps()(query, key, value, **options)
    if mask is None or mask.dtype is not torch.bool:
        return output
    with torch.no_grad():
        plain = Steps().answer(query, key, value, scale=options.get("scale"))[1]
    astray = plain @ value
    return Steps()(query, key, value.detach(), **options) + astray - astray.detach()


@breaks_gradients("gradients.float-mask", step="add_mask", holds=("gradients.query", "masks.float"))
def mask_gradient_scaled(scores: Tensor, mask: Tensor) -> Tensor:
    spoilt = mask if mask.dtype is torch.bool else distorted(mask, lambda gradient: gradient / 2)
    return correct.add_mask(scores, spoilt)


@breaks_gradients("gradients.float-mask", step="add_mask", holds=("gradients.query", "masks.float"))
def mask_gradient_averaged(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is torch.bool or (mask.ndim == 4 and mask.shape[0] > 1):
        return correct.add_mask(scores, mask)
    return correct.add_mask(scores, distorted(mask, lambda gradient: gradient / scores.shape[0]))


@breaks_gradients("gradients.float-mask", step="add_mask", holds=("gradients.query", "masks.float"))
def mask_gradient_lost_in_broadcasting(scores: Tensor, mask: Tensor) -> Tensor:
    whole = mask.shape == scores.shape or mask.dtype is torch.bool
    return correct.add_mask(scores, mask if whole else mask.detach() + 0.0 * mask.nan_to_num(neginf=0.0))


@breaks_gradients("gradients.empty-row", holds=("masks.empty-row-bool", "gradients.query"))
def nan_replaced_after_softmax(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def added(scores: Tensor, mask: Tensor) -> Tensor:
        return scores + (mask.to(scores.dtype).log() if mask.dtype is torch.bool else mask)

    steps = Steps(add_mask=added, softmax=lambda scores: torch.softmax(scores, -1).nan_to_num())
    return steps(query, key, value, **options)


@breaks_gradients("gradients.single-input", holds=FORWARD, raises=True)
def graph_only_for_queries(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    with torch.set_grad_enabled(query.requires_grad):
        return Steps()(query, key, value, **options)


@breaks("gradients.single-input", holds=("gradients.float-mask", "gradients.query"), severity=CRASH, raises=True)
def mask_gradient_with_others_only(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not any(x.requires_grad for x in (query, key, value)) and "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"].detach()
    return Steps()(query, key, value, **options)


@breaks_gradients("gradients.cotangent", holds=FORWARD, raises=True)
def cotangent_read_as_contiguous(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return distorted(Steps()(query, key, value, **options), flat)


@breaks_layer("gradients.parameters", holds=("gradients.query", "projections.output"), step="output", severity=GRADIENT)
def output_matrix_detached(layer: Layer, merged: Tensor) -> Tensor:
    return F.linear(merged, layer.o.weight.detach(), layer.o.bias) + 0.0 * layer.o.weight.sum()


@breaks_projected("gradients.parameters", holds=("gradients.query", "projections.bias"))
def bias_gradient_of_one_token(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    held = layer.v.bias.expand(*value.shape[:-1], -1)
    first = torch.arange(value.shape[-2])[:, None] == 0
    bias = torch.where(first, held, held.detach())
    return layer.q(query), layer.k(key), F.linear(value, layer.v.weight) + bias


@breaks_projected("gradients.key", holds=("gradients.value", "projections.key"))
def key_input_detached(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    return layer.q(query), layer.k(key.detach()), layer.v(value)


class _MixedWith(torch.autograd.Function):
    """The mixture of values, whose gradient has weights of its own."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, value: Tensor, others: Tensor) -> Tensor:
        ctx.save_for_backward(value, others)
        return weights @ value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        value, others = ctx.saved_tensors
        return gradient @ value.mT, others.mT @ gradient, None


@breaks("gradients.same-weights", holds=("gradients.query", "gradients.value"), severity=PRECISION, dtype="bfloat16")
def log_sum_exp_kept_in_half_for_the_backward_pass(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    held: list[Tensor] = []

    def softmax(scores: Tensor) -> Tensor:
        held.append(scores.detach())
        return correct.softmax(scores)

    def mix(weights: Tensor, mixed: Tensor) -> Tensor:
        kept = held[-1].logsumexp(-1, keepdim=True).to(query.dtype)
        others = torch.nan_to_num((held[-1] - kept).exp())[..., : weights.shape[-1]]
        result: Tensor = _MixedWith.apply(weights, mixed, others)  # type: ignore[no-untyped-call]
        return result

    return Steps(softmax=softmax, mix=mix)(query, key, value, **options)


COMPONENTS = 128
"""Of the sum that is added up one by one."""


class _CentredInHalf(torch.autograd.Function):
    """A softmax whose gradient takes away a sum over components that has been added up in a half type."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, dtype: torch.dtype) -> Tensor:
        weights = correct.softmax(scores)
        ctx.save_for_backward(weights)
        ctx.dtype = dtype
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        centre = (weights * gradient).sum(-1, keepdim=True)
        total = torch.zeros_like(centre).to(ctx.dtype)
        for _ in range(COMPONENTS):
            total = total + (centre / COMPONENTS).to(ctx.dtype)
        return weights * (gradient - total.to(gradient.dtype)), None


@breaks(
    "gradients.same-weights",
    step="softmax",
    holds=("gradients.value", "softmax.over-keys"),
    severity=PRECISION,
    dtype="bfloat16",
)
def centre_added_up_in_half(scores: Tensor) -> Tensor:
    weights: Tensor = _CentredInHalf.apply(scores, torch.bfloat16)  # type: ignore[no-untyped-call]
    return weights
