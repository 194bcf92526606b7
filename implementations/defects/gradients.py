"""Mistakes of chapter 11: right answers with wrong gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import (
    INFINITY,
    Steps,
    add_mask,
    factor,
    score,
    softmax,
)
from attention_conformance.implementations.defects.breaking import CRASH, GRADIENT, breaks, breaks_layer, github

FORWARD = ("gradients.query", "gradients.key", "gradients.value")


class Distorted(torch.autograd.Function):
    """The tensor itself, whose gradient is spoilt on its way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spoil: Any) -> Tensor:
        ctx.spoil = spoil
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.spoil(gradient), None


def distorted(x: Tensor, spoil: Callable[[Tensor], Tensor]) -> Tensor:
    """The tensor itself; `spoil` is applied to its gradient."""
    found: Tensor = Distorted.apply(x, spoil)  # type: ignore[no-untyped-call]
    return found


breaks_gradients = partial(breaks, severity=GRADIENT)


@breaks_gradients(
    "gradients.query", step="score", holds=("gradients.key", "gradients.value", "scores.dot-product")
).entry(
    does="Passes no gradient to the queries.",
    repair="Detach nothing between the inputs and the output.",
    hides="Outputs; a loss that falls because all else learns.",
)
def query_gradient_lost(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query.detach(), key, by) + 0.0 * query.sum()


@breaks_gradients("gradients.query", holds=("gradients.key", "gradients.value", "scores.scale-explicit")).entry(
    does="Multiplies the gradient of the queries by the default scale, whichever was given.",
    repair="Save the scale for the backward pass.",
    hides="Calls without a scale.",
)
def query_gradient_by_the_default_scale(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **masks: Any
) -> Tensor:
    by = factor(query, scale) or 1.0
    rotated = distorted(query, lambda gradient: gradient * (factor(query, None) / by))
    return Steps()(rotated, key, value, scale=scale, **masks)


@breaks_gradients(
    "gradients.key", step="score", holds=("gradients.query", "gradients.value", "scores.dot-product")
).entry(
    does="Leaves the scale out of the gradient of the keys.",
    repair="Multiply the gradients of queries and keys by the scale.",
    hides="Outputs; a scale of 1.",
)
def key_gradient_without_scale(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, distorted(key, lambda gradient: gradient / by if by else gradient), by)


@breaks_gradients("gradients.key", holds=("gradients.query", "gradients.value", "relations.permute-heads")).entry(
    does="Writes the gradient of the keys for the first head only.",
    repair="Compute the offset of each head in the backward pass as in the forward pass.",
    hides="Outputs; a single head.",
    links=github("flagos-ai/FlagGems/pull/898"),
)
def key_gradient_of_the_first_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    first = torch.arange(key.shape[1])[:, None, None] == 0
    return Steps()(query, distorted(key, lambda gradient: gradient * first), value, **options)


@breaks_gradients(
    "gradients.query", "gradients.key", step="softmax", holds=("gradients.value", "softmax.over-keys")
).entry(
    does="Differentiates the exponential, and not the sum that divides it.",
    repair="Subtract the row sum of dP * P from dP before multiplying by P.",
    hides="Outputs; gradients whose row sums vanish.",
)
def row_sum_left_out(scores: Tensor) -> Tensor:
    shift = torch.logsumexp(scores, -1, keepdim=True).detach()
    return (scores - shift.where(shift > -INFINITY, 0.0)).exp()


@breaks_gradients("shapes.large", holds=(*FORWARD, "shapes.tile-edges")).entry(
    does="Leaves the keys after the 128th out of the backward pass.",
    repair="Let the backward pass read as many tiles as the forward pass.",
    hides="Outputs; sequences of up to 128 keys.",
)
def gradient_of_later_tiles_lost(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    read = torch.arange(key.shape[-2])[:, None] < 128
    key, value = (distorted(x, lambda gradient: gradient * read) for x in (key, value))
    return Steps()(query, key, value, **options)


@breaks_gradients(
    "gradients.query", "gradients.key", step="softmax", holds=("gradients.value", "softmax.over-keys")
).entry(
    does="Detaches the weights, so that no gradient reaches the scores.",
    repair="Detach the weights that are returned, not those that multiply the values.",
    hides="Outputs; a loss that falls because the values learn.",
)
def weights_detached(scores: Tensor) -> Tensor:
    return softmax(scores).detach()


@breaks_gradients(
    "gradients.value", step="mix", holds=("gradients.query", "gradients.key", "values.weighted-sum")
).entry(
    does="Halves the gradient of the values.",
    repair="Multiply the cotangent by the transposed weights, once.",
    hides="Outputs; directions of gradients.",
)
def value_gradient_halved(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ distorted(value, lambda gradient: gradient / 2)


@breaks_gradients("gradients.masked", holds=("masks.bool", "gradients.query")).entry(
    does="Computes the gradient of the values by weights without the mask.",
    repair="Recompute the weights with the masks of the forward pass.",
    hides="Outputs; calls without a mask.",
    matters="Padding is trained, and with it the embedding of the padding token.",
)
def value_gradient_by_unmasked_weights(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    output = Steps()(query, key, value, **options)
    if mask is None or mask.dtype is not torch.bool:
        return output
    with torch.no_grad():
        plain = Steps().answer(query, key, value, scale=options.get("scale"))[1]
    astray = plain @ value
    return Steps()(query, key, value.detach(), **options) + astray - astray.detach()


@breaks_gradients("gradients.float-mask", step="add_mask", holds=("gradients.query", "masks.float")).entry(
    does="Halves the gradient of a float mask.",
    repair="Give the mask the derivative of the scores, which no scale multiplies.",
    hides="Outputs; masks that are not learned.",
)
def mask_gradient_scaled(scores: Tensor, mask: Tensor) -> Tensor:
    spoilt = mask if mask.dtype is torch.bool else distorted(mask, lambda gradient: gradient / 2)
    return add_mask(scores, spoilt)


@breaks_gradients("gradients.float-mask", step="add_mask", holds=("gradients.query", "masks.float")).entry(
    does="Averages the gradient of a float mask over the samples that share it, instead of summing it.",
    repair="Sum over the axes along which the mask was broadcast.",
    hides="Outputs; a batch of one; masks for each sample.",
    links=github("jax-ml/jax/issues/30593"),
)
def mask_gradient_averaged(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is torch.bool or (mask.ndim == 4 and mask.shape[0] > 1):
        return add_mask(scores, mask)
    return add_mask(scores, distorted(mask, lambda gradient: gradient / scores.shape[0]))


@breaks_gradients("gradients.float-mask", step="add_mask", holds=("gradients.query", "masks.float")).entry(
    does="Passes no gradient to a float mask that is broadcast.",
    repair="Sum over the axes along which the mask was broadcast.",
    hides="Outputs; masks that spell out all axes.",
    links=github("facebookresearch/xformers/issues/783"),
)
def mask_gradient_lost_in_broadcasting(scores: Tensor, mask: Tensor) -> Tensor:
    whole = mask.shape == scores.shape or mask.dtype is torch.bool
    return add_mask(scores, mask if whole else mask.detach() + 0.0 * mask.nan_to_num(neginf=0.0))


@breaks_gradients("gradients.empty-row", holds=("masks.empty-row-bool", "gradients.query")).entry(
    does="Replaces the NaN of a row without keys after the softmax only.",
    repair="Make the row harmless before the softmax, and zero after it.",
    hides="Outputs; rows with a key.",
    matters="One empty row makes the gradients of all shared weights NaN, though the loss ignores it.",
    links=github("pytorch/pytorch/issues/41508", "Xilinx/brevitas/pull/1591", "pytorch/pytorch/pull/196170"),
)
def nan_replaced_after_softmax(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def added(scores: Tensor, mask: Tensor) -> Tensor:
        return scores + (mask.to(scores.dtype).log() if mask.dtype is torch.bool else mask)

    steps = Steps(add_mask=added, softmax=lambda scores: torch.softmax(scores, -1).nan_to_num())
    return steps(query, key, value, **options)


@breaks_gradients("gradients.single-input", holds=FORWARD, raises=True).entry(
    does="Records a graph only when the queries require a gradient.",
    repair="Record a graph when any input requires a gradient.",
    hides="Outputs; gradients of all inputs at once.",
    matters="Frozen queries, as in prompt tuning, freeze everything.",
)
def graph_only_for_queries(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    with torch.set_grad_enabled(query.requires_grad):
        return Steps()(query, key, value, **options)


@breaks("gradients.single-input", holds=("gradients.float-mask", "gradients.query"), severity=CRASH, raises=True).entry(
    does="Has no gradient for a float mask when nothing else requires one.",
    repair="Test each input by itself for whether it requires a gradient.",
    hides="Outputs; gradients of all inputs at once.",
    links=github("pytorch/pytorch/pull/188302"),
)
def mask_gradient_with_others_only(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not any(x.requires_grad for x in (query, key, value)) and "attn_mask" in options:
        options["attn_mask"] = options["attn_mask"].detach()
    return Steps()(query, key, value, **options)


@breaks_gradients("gradients.cotangent", holds=FORWARD, raises=True).entry(
    does="Reads the cotangent as if it were contiguous.",
    repair="Respect the strides of the cotangent, those of 0 included, or copy first.",
    hides="Outputs; cotangents made by a loss that copies.",
    matters="The derivative of a plain sum is one number, expanded: it is read beyond its end.",
)
def cotangent_read_as_contiguous(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def flat(x: Tensor) -> Tensor:
        return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride())

    return distorted(Steps()(query, key, value, **options), flat)


@breaks_layer("gradients.parameters", holds=("gradients.query", "projections.output"), severity=GRADIENT).entry(
    does="Passes no gradient to the output matrix.",
    repair="Detach nothing between the parameters and the output.",
    hides="Outputs; a loss that falls because all else learns.",
)
class OutputMatrixDetached(Layer):
    def output(self, merged: Tensor) -> Tensor:
        return F.linear(merged, self.o.weight.detach(), self.o.bias) + 0.0 * self.o.weight.sum()


@breaks_layer("gradients.parameters", holds=("gradients.query", "projections.bias"), severity=GRADIENT).entry(
    does="Takes the gradient of the value bias from the first token only.",
    repair="Sum the gradient of a bias over samples and tokens.",
    hides="Outputs; a single token.",
)
class BiasGradientOfOneToken(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        held = self.v.bias.expand(*value.shape[:-1], -1)
        first = torch.arange(value.shape[-2])[:, None] == 0
        bias = torch.where(first, held, held.detach())
        return self.q(query), self.k(key), F.linear(value, self.v.weight) + bias


@breaks_layer("gradients.key", holds=("gradients.value", "projections.key"), severity=GRADIENT, raises=False).entry(
    does="Passes no gradient through the key projection to its input.",
    repair="Sum the gradient of an input over all the roles in which it serves.",
    hides="Outputs; gradients of parameters.",
)
class KeyInputDetached(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(key.detach()), self.v(value)
