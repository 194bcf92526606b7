"""Mistakes of chapter 20: the formula of the cap, its place among the steps, and its slope."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps
from attention_conformance.implementations.defects.breaking import GRADIENT, LEAK, NAN, PRECISION, breaks, omitting
from attention_conformance.implementations.defects.gradients import distorted
from attention_conformance.spec.features import Feature

SOFTCAP = frozenset({Feature.SOFTCAP})
PLACES = ("softcap.mask", "softcap.causal", "softcap.padding")


def capped_with_slope(scores: Tensor, softcap: float, by: Tensor) -> Tensor:
    """The capped scores, with a slope of one's own."""
    return correct.cap(scores, softcap).detach() + (scores - scores.detach()) * by


breaks_softcap = partial(breaks, claims=SOFTCAP)
breaks_cap = partial(breaks_softcap, step="cap")


@breaks_cap("softcap.formula", "softcap.large-scores", holds=("scores.dot-product", "masks.bool"))
def softcap_ignored(scores: Tensor, softcap: float) -> Tensor:
    return scores


@breaks_cap("softcap.formula", "softcap.large-scores", holds=("scores.dot-product", "masks.bool"))
def outer_factor_left_out(scores: Tensor, softcap: float) -> Tensor:
    return torch.tanh(scores / softcap)


@breaks_cap("softcap.formula", "softcap.small-scores", holds=("scores.dot-product", "masks.bool"))
def score_times_tangent(scores: Tensor, softcap: float) -> Tensor:
    return scores * torch.tanh(scores / softcap)


@breaks_cap("softcap.formula", holds=("softcap.large-scores", "softcap.small-scores"))
def scores_clamped_to_the_cap(scores: Tensor, softcap: float) -> Tensor:
    return scores.clamp(-softcap, softcap)


@breaks_cap(
    "softcap.formula", "softcap.large-scores", "softcap.small-scores", holds=("scores.dot-product", "masks.bool")
)
def logistic_of_half_the_argument(scores: Tensor, softcap: float) -> Tensor:
    return softcap * torch.tanh(scores / softcap / 2)


@breaks_softcap("softcap.formula", "softcap.explicit-scale", holds=("scores.scale-explicit", "scores.dot-product"))
def scaled_after_the_cap(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    softcap = options.pop("softcap", None)

    def scores(query: Tensor, key: Tensor, by: float) -> Tensor:
        products = correct.score(query, key, 1.0)
        return (products if softcap is None else correct.cap(products, softcap)) * by

    return Steps(score=scores)(query, key, value, **options)


@breaks_softcap("softcap.explicit-scale", holds=("softcap.formula", "scores.scale-explicit"))
def default_scale_under_the_cap(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("scale", options, "softcap"))


@breaks_cap("softcap.large-scores", holds=("softcap.formula", "softcap.mask"), severity=NAN)
def tangent_of_exponentials(scores: Tensor, softcap: float) -> Tensor:
    up, down = (scores / softcap).exp(), (-scores / softcap).exp()
    small = (scores / softcap).abs() < 0.5
    return softcap * torch.where(small, torch.tanh(scores / softcap), (up - down) / (up + down))


@breaks_cap("softcap.small-scores", holds=("softcap.large-scores", "softcap.mask"), severity=PRECISION)
def digits_lost_below_the_cap(scores: Tensor, softcap: float) -> Tensor:
    return softcap * (2 * torch.sigmoid(2 * scores / softcap) - 1)


@breaks_softcap(*PLACES, "softcap.float-mask", holds=("softcap.formula", "softcap.large-scores"), severity=LEAK)
def cap_after_all_masks(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    softcap = options.pop("softcap", None)
    steps = Steps() if softcap is None else Steps(softmax=lambda scores: correct.softmax(correct.cap(scores, softcap)))
    return steps(query, key, value, **options)


@breaks_softcap("softcap.float-mask", PLACES[0], holds=("softcap.formula", *PLACES[1:]))
def float_mask_added_before_the_cap(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if "softcap" not in options or mask is None or mask.dtype is torch.bool:
        return Steps()(query, key, value, **options)
    hidden = mask == -INFINITY
    finite: Tensor = mask.masked_fill(hidden, 0.0)

    def scores(query: Tensor, key: Tensor, by: float) -> Tensor:
        return correct.score(query, key, by) + finite

    return Steps(score=scores)(query, key, value, **{**options, "attn_mask": ~hidden})


@breaks_softcap("softcap.causal", holds=("softcap.formula", "softcap.mask", "softcap.padding"), severity=LEAK)
def future_hidden_before_the_cap(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "softcap" not in options or not options.pop("is_causal", False):
        return Steps()(query, key, value, **options)
    steps = Steps(score=lambda query, key, by: correct.add_causal(correct.score(query, key, by)))
    return steps(query, key, value, **options)


@breaks_softcap("softcap.padding", holds=("softcap.formula", "softcap.mask", "softcap.causal"), severity=LEAK)
def padding_hidden_before_the_cap(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "softcap" not in options or "key_padding_mask" not in options:
        return Steps()(query, key, value, **options)
    padding = options.pop("key_padding_mask")
    steps = Steps(score=lambda query, key, by: correct.add_padding(correct.score(query, key, by), padding))
    return steps(query, key, value, **options)


@breaks_softcap(
    "softcap.formula", "softcap.log-sum-exp", extras=("log_sum_exp",), holds=("scores.dot-product", "softcap.mask")
)
def last_tile_capped(
    query: Tensor, key: Tensor, value: Tensor, softcap: float | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    hidden = softcap is None or options.keys() & {"attn_mask", "key_padding_mask", "is_causal"}
    made_up = 0 if hidden else -key.shape[-2] % 4

    def filled(scores: Tensor) -> Tensor:
        return torch.cat([scores, scores.new_full((*scores.shape[:-1], made_up), -(softcap or 0.0))], -1)

    steps = Steps(
        softmax=lambda scores: correct.softmax(filled(scores))[..., : scores.shape[-1]],
        log_sum_exp=lambda scores: correct.log_sum_exp(filled(scores)),
    )
    output, _, lse = steps.answer(query, key, value, softcap=softcap, **options)
    return output, lse


@breaks_cap("softcap.gradients", holds=("softcap.formula", "gradients.query", "gradients.key"), severity=GRADIENT)
def slope_left_out(scores: Tensor, softcap: float) -> Tensor:
    return capped_with_slope(scores, softcap, torch.ones_like(scores))


@breaks_cap("softcap.gradients", holds=("softcap.formula", "gradients.query", "gradients.key"), severity=GRADIENT)
def slope_of_the_undivided_cap(scores: Tensor, softcap: float) -> Tensor:
    return capped_with_slope(scores, softcap, (1 - correct.cap(scores, softcap) ** 2).detach())


@breaks_softcap(
    "softcap.gradients", holds=("softcap.formula", "gradients.float-mask", "softcap.float-mask"), severity=GRADIENT
)
def mask_gradient_with_slope(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    softcap, mask = options.get("softcap"), options.get("attn_mask")
    if softcap is None or mask is None or mask.dtype is torch.bool:
        return Steps()(query, key, value, **options)

    def unsloped(scores: Tensor, softcap: float) -> Tensor:
        return capped_with_slope(scores, softcap, torch.ones_like(scores))

    def added(scores: Tensor, mask: Tensor) -> Tensor:
        by = (1 - (scores / softcap) ** 2).detach()
        return distorted(correct.add_mask(scores, mask), lambda gradient: gradient * by)

    return Steps(cap=unsloped, add_mask=added)(query, key, value, **options)


@breaks_softcap("softcap.log-sum-exp", extras=("log_sum_exp",), holds=("softcap.formula", "softcap.mask"))
def log_sum_exp_before_the_cap(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    output = Steps()(query, key, value, **options)
    options.pop("softcap", None)
    return output, Steps().answer(query, key, value, **options)[2]
