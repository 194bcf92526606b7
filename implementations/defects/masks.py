"""Mistakes of chapter 7: boolean and float masks, what they mean and what a masked score becomes."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps, add_mask, mix
from attention_conformance.implementations.defects.breaking import LEAK, NAN, breaks
from attention_conformance.spec.features import Feature


def is_bool(mask: Tensor) -> bool:
    """Whether the mask keeps or hides, and does not add."""
    return mask.dtype is torch.bool


leaks_by_mask = partial(breaks, step="add_mask", severity=LEAK)


@leaks_by_mask("masks.bool", "masks.neutral", holds=("masks.float", "masks.float-infinity"))
def mask_inverted(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, ~mask if is_bool(mask) else mask)


@leaks_by_mask("masks.bool", "masks.no-influence", holds=("masks.float", "masks.neutral"))
def bool_mask_added(scores: Tensor, mask: Tensor) -> Tensor:
    return scores + mask if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.bool", "masks.no-influence", holds=("masks.float", "masks.neutral"))
def mask_multiplied_into_scores(scores: Tensor, mask: Tensor) -> Tensor:
    return scores * mask if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.bool", "masks.segments", holds=("masks.float", "masks.neutral"))
def masked_scores_thrown_away(scores: Tensor, mask: Tensor) -> Tensor:
    if is_bool(mask):
        scores.masked_fill(~mask, -INFINITY)
        return scores
    return add_mask(scores, mask)


@breaks("masks.bool", "masks.zero-weight", step="add_mask", holds=("masks.float", "masks.neutral"), severity=NAN)
def plus_infinity_filled_in(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, INFINITY) if is_bool(mask) else add_mask(scores, mask)


@breaks("masks.bool", "masks.segments", extras=("weights",), holds=("masks.neutral", "masks.float"))
def masked_after_softmax(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    mask = options.get("attn_mask")
    if mask is None or not is_bool(mask):
        return Steps().answer(query, key, value, **options)[:2]
    steps = Steps(mix=lambda weights, value: mix(weights * mask, value))
    output, weights, _ = steps.answer(query, key, value, **{**options, "attn_mask": None})
    return output, weights * mask


@breaks("masks.no-influence", holds=("masks.bool", "masks.segments"), severity=NAN)
def masked_and_normalised_again(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is None or not is_bool(mask):
        return Steps()(query, key, value, **options)

    def again(weights: Tensor, value: Tensor) -> Tensor:
        rest = weights * mask
        whole = rest.sum(-1, keepdim=True)
        return mix(torch.where(whole > 0, rest / whole, torch.where(mask.any(-1, keepdim=True), torch.nan, 0.0)), value)

    return Steps(mix=again)(query, key, value, **{**options, "attn_mask": None})


@leaks_by_mask("masks.float", "scores.bias-after-scale", holds=("masks.bool",))
def float_mask_read_as_truth(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask.bool())


@breaks("masks.float", "scores.bias-after-scale", step="add_mask", holds=("masks.bool", "masks.neutral"))
def float_mask_read_as_padding(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask if is_bool(mask) else mask == 0)


@breaks("masks.float", "scores.bias-after-scale", step="add_mask", holds=("masks.bool", "masks.neutral"))
def float_mask_subtracted(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask if is_bool(mask) else torch.where(mask == -INFINITY, mask, -mask))


@leaks_by_mask("masks.float-infinity", holds=("masks.float", "masks.bool"))
def float_mask_clamped(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask if is_bool(mask) else mask.clamp(min=-12.0))


@leaks_by_mask("masks.no-influence", "masks.fill-value", holds=("masks.bool", "masks.segments"))
def large_number_subtracted(scores: Tensor, mask: Tensor) -> Tensor:
    return scores - 1e9 * ~mask if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.fill-value", holds=("masks.bool", "masks.no-influence"))
def billion_filled_in(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -1e9) if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.fill-value", holds=("masks.bool", "masks.no-influence"), dtype="float16")
def ten_thousand_filled_in(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -1e4) if is_bool(mask) else add_mask(scores, mask)


@leaks_by_mask("masks.zero-weight", "gradients.masked", "relations.padding-extension", holds=("masks.neutral",))
def small_fill(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -20.0) if is_bool(mask) else add_mask(scores, mask)


@breaks("masks.containment", step="mix", claims={Feature.CONTAINMENT}, holds=("masks.no-influence",), severity=NAN)
def zero_times_nan(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value


@breaks("masks.containment", claims={Feature.CONTAINMENT}, holds=("masks.no-influence", "masks.bool"), severity=NAN)
def nan_plus_minus_infinity(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def added(scores: Tensor, mask: Tensor) -> Tensor:
        return scores + (mask.to(scores.dtype).log() if is_bool(mask) else mask)

    def selected(weights: Tensor, value: Tensor) -> Tensor:
        return mix(weights, value.where((weights != 0).any(-2)[..., None], 0.0))

    return Steps(add_mask=added, mix=selected)(query, key, value, **options)
