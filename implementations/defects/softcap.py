"""Mistakes of chapter 20: the formula of the cap, its place among the steps, and its slope."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import (
    INFINITY,
    Steps,
    add_causal,
    add_mask,
    add_padding,
    cap,
    log_sum_exp,
    score,
    softmax,
)
from attention_conformance.implementations.defects.breaking import GRADIENT, LEAK, NAN, PRECISION, breaks, github
from attention_conformance.implementations.defects.gradients import distorted
from attention_conformance.spec.features import Feature

SOFTCAP = frozenset({Feature.SOFTCAP})
PLACES = ("softcap.mask", "softcap.causal", "softcap.padding")


def capped_with_slope(scores: Tensor, softcap: float, by: Tensor) -> Tensor:
    """The capped scores, with a slope of one's own."""
    return cap(scores, softcap).detach() + (scores - scores.detach()) * by


breaks_softcap = partial(breaks, claims=SOFTCAP)
breaks_cap = partial(breaks_softcap, step="cap")


@breaks_cap("softcap.formula", "softcap.large-scores", holds=("scores.dot-product", "masks.bool")).entry(
    does="Accepts a softcap and ignores it.",
    repair="Cap the scores, or refuse the argument.",
    hides="Scores far below the cap.",
    matters="A served model of this kind scored a fifth lower, without an error.",
    links=github("vllm-project/vllm-metal/issues/665", "sgl-project/sgl-kernel-xpu/pull/491"),
)
def softcap_ignored(scores: Tensor, softcap: float) -> Tensor:
    return scores


@breaks_cap("softcap.formula", "softcap.large-scores", holds=("scores.dot-product", "masks.bool")).entry(
    does="Leaves out the factor before the tangent.",
    repair="Multiply the tangent by the cap.",
    hides="A cap of 1.",
    links=github("unslothai/unsloth-zoo/pull/593"),
)
def outer_factor_left_out(scores: Tensor, softcap: float) -> Tensor:
    return torch.tanh(scores / softcap)


@breaks_cap("softcap.formula", "softcap.small-scores", holds=("scores.dot-product", "masks.bool")).entry(
    does="Multiplies the tangent by the score instead of the cap.",
    repair="Multiply the tangent by the cap.",
    hides="Scores that are all alike.",
    links=github("unslothai/unsloth-zoo/pull/593"),
)
def score_times_tangent(scores: Tensor, softcap: float) -> Tensor:
    return scores * torch.tanh(scores / softcap)


@breaks_cap("softcap.formula", holds=("softcap.large-scores", "softcap.small-scores")).entry(
    does="Clamps the scores to the cap.",
    repair="Use the tangent, which bends before it reaches the cap.",
    hides="Scores that are far below the cap or far beyond it.",
)
def scores_clamped_to_the_cap(scores: Tensor, softcap: float) -> Tensor:
    return scores.clamp(-softcap, softcap)


@breaks_cap(
    "softcap.formula", "softcap.large-scores", "softcap.small-scores", holds=("scores.dot-product", "masks.bool")
).entry(
    does="Writes the tangent by a logistic function of the same argument, and not of twice that.",
    repair="Use tanh(y) = 2 sigmoid(2 y) - 1.",
    hides="Scores far beyond the cap.",
)
def logistic_of_half_the_argument(scores: Tensor, softcap: float) -> Tensor:
    return softcap * torch.tanh(scores / softcap / 2)


@breaks_softcap(
    "softcap.formula", "softcap.explicit-scale", holds=("scores.scale-explicit", "scores.dot-product")
).entry(
    does="Caps the products of query and key, and scales afterwards.",
    repair="Scale first, then cap.",
    hides="A scale of 1; products far below the cap.",
)
def scaled_after_the_cap(
    query: Tensor, key: Tensor, value: Tensor, softcap: float | None = None, **options: Any
) -> Tensor:
    def scores(query: Tensor, key: Tensor, by: float) -> Tensor:
        products = score(query, key, 1.0)
        return (products if softcap is None else cap(products, softcap)) * by

    return Steps(score=scores)(query, key, value, **options)


@breaks_softcap("softcap.explicit-scale", holds=("softcap.formula", "scores.scale-explicit")).entry(
    does="Divides by the square root of the width under the cap, also where a scale is given.",
    repair="Let a given scale replace the default.",
    hides="Calls with the default scale, or without a cap.",
)
def default_scale_under_the_cap(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "softcap" in options:
        options.pop("scale", None)
    return Steps()(query, key, value, **options)


@breaks_cap("softcap.large-scores", holds=("softcap.formula", "softcap.mask"), severity=NAN).entry(
    does="Puts the tangent together from two exponentials, which overflow.",
    repair="Call the library's tangent, or use exponentials of -2 |y| only.",
    hides="Scores below 88 times the cap in float32.",
    links=github("vllm-project/vllm/issues/56578"),
)
def tangent_of_exponentials(scores: Tensor, softcap: float) -> Tensor:
    up, down = (scores / softcap).exp(), (-scores / softcap).exp()
    small = (scores / softcap).abs() < 0.5
    return softcap * torch.where(small, torch.tanh(scores / softcap), (up - down) / (up + down))


@breaks_cap("softcap.small-scores", holds=("softcap.large-scores", "softcap.mask"), severity=PRECISION).entry(
    does="Subtracts exponentials near 1 from each other for scores far below the cap.",
    repair="Call the library's tangent, or use expm1.",
    hides="Scores of the size of the cap.",
    matters="With a large cap the scores lose as many digits as the cap has more than they.",
)
def digits_lost_below_the_cap(scores: Tensor, softcap: float) -> Tensor:
    return softcap * (2 * torch.sigmoid(2 * scores / softcap) - 1)


@breaks_softcap(*PLACES, "softcap.float-mask", holds=("softcap.formula", "softcap.large-scores"), severity=LEAK).entry(
    does="Caps after all masks: minus infinity becomes -c.",
    repair="Scale, cap, add, mask, and then the softmax.",
    hides="Large caps: the weight of a masked key is e to the -c; calls without a mask.",
    matters="Masked keys have weight: the future and other documents leak. An operator's specification had it.",
    links=github(
        "onnx/onnx/issues/7865",
        "onnx/onnx/pull/7867",
        "microsoft/onnxruntime/pull/28379",
        "Dao-AILab/flash-attention/pull/1025",
    ),
)
def cap_after_all_masks(
    query: Tensor, key: Tensor, value: Tensor, softcap: float | None = None, **options: Any
) -> Tensor:
    steps = Steps() if softcap is None else Steps(softmax=lambda scores: softmax(cap(scores, softcap)))
    return steps(query, key, value, **options)


@breaks_softcap("softcap.float-mask", holds=("softcap.formula", *PLACES)).entry(
    does="Adds a float mask before the cap, and hides what is minus infinity after it.",
    repair="Add the mask to the capped scores.",
    hides="Boolean masks, and float masks of zeros and minus infinities.",
    links=github("onnx/onnx/pull/7867"),
)
def float_mask_added_before_the_cap(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if "softcap" not in options or mask is None or mask.dtype is torch.bool:
        return Steps()(query, key, value, **options)
    hidden = mask == -INFINITY
    finite: Tensor = mask.masked_fill(hidden, 0.0)

    def scores(query: Tensor, key: Tensor, by: float) -> Tensor:
        return score(query, key, by) + finite

    return Steps(score=scores)(query, key, value, **{**options, "attn_mask": ~hidden})


@breaks_softcap("softcap.causal", holds=("softcap.formula", "softcap.mask", "softcap.padding"), severity=LEAK).entry(
    does="Hides the future before the cap.",
    repair="Cap first, in kernels that build the triangle as well.",
    hides="Large caps, and calls without the flag.",
    links=github("Dao-AILab/flash-attention/pull/1025"),
)
def future_hidden_before_the_cap(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, **options: Any
) -> Tensor:
    def scores(query: Tensor, key: Tensor, by: float) -> Tensor:
        return add_causal(score(query, key, by)) if is_causal else score(query, key, by)

    if "softcap" not in options:
        return Steps()(query, key, value, is_causal=is_causal, **options)
    return Steps(score=scores)(query, key, value, **options)


@breaks_softcap("softcap.padding", holds=("softcap.formula", "softcap.mask", "softcap.causal"), severity=LEAK).entry(
    does="Hides padding before the cap.",
    repair="Cap first, then hide.",
    hides="Large caps, and batches without padding.",
)
def padding_hidden_before_the_cap(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    padding = options.pop("key_padding_mask", None) if "softcap" in options else None

    def scores(query: Tensor, key: Tensor, by: float) -> Tensor:
        return score(query, key, by) if padding is None else add_padding(score(query, key, by), padding)

    return Steps(score=scores)(query, key, value, **options)


@breaks_softcap(
    "softcap.formula", "softcap.log-sum-exp", extras=("log_sum_exp",), holds=("scores.dot-product", "softcap.mask")
).entry(
    does="Fills up the last tile of keys before the cap, so that keys take weight that do not exist.",
    repair="Fill up the last tile after the cap.",
    hides="Numbers of keys that are multiples of the tile; calls with a mask, which hides them again; large caps.",
    links=github("ggml-org/llama.cpp/pull/29034"),
)
def last_tile_capped(
    query: Tensor, key: Tensor, value: Tensor, softcap: float | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    hidden = softcap is None or options.keys() & {"attn_mask", "key_padding_mask", "is_causal"}
    made_up = 0 if hidden else -key.shape[-2] % 4

    def filled(scores: Tensor) -> Tensor:
        return torch.cat([scores, scores.new_full((*scores.shape[:-1], made_up), -(softcap or 0.0))], -1)

    steps = Steps(
        softmax=lambda scores: softmax(filled(scores))[..., : scores.shape[-1]],
        log_sum_exp=lambda scores: log_sum_exp(filled(scores)),
    )
    output, _, lse = steps.answer(query, key, value, softcap=softcap, **options)
    return output, lse


@breaks_cap(
    "softcap.gradients", holds=("softcap.formula", "gradients.query", "gradients.key"), severity=GRADIENT
).entry(
    does="Passes the gradient around the cap as if it were not there.",
    repair="Multiply the gradient of the scores by 1 - tanh^2.",
    hides="Outputs; scores far below the cap.",
    links=github("Dao-AILab/flash-attention/pull/1033"),
)
def slope_left_out(scores: Tensor, softcap: float) -> Tensor:
    return capped_with_slope(scores, softcap, torch.ones_like(scores))


@breaks_cap(
    "softcap.gradients", holds=("softcap.formula", "gradients.query", "gradients.key"), severity=GRADIENT
).entry(
    does="Takes the slope of the capped score, which is not divided by the cap.",
    repair="Take 1 - (t / c)^2 of the capped score t.",
    hides="Outputs; a cap of 1.",
)
def slope_of_the_undivided_cap(scores: Tensor, softcap: float) -> Tensor:
    return capped_with_slope(scores, softcap, (1 - cap(scores, softcap) ** 2).detach())


@breaks_softcap(
    "softcap.gradients", holds=("softcap.formula", "gradients.float-mask", "softcap.float-mask"), severity=GRADIENT
).entry(
    does="Multiplies the gradient of a float mask by the slope of the cap.",
    repair="Give the mask the gradient of what follows the cap.",
    hides="Outputs, and masks that are not learned.",
    links=github("openxla/tokamax/pull/1121"),
)
def mask_gradient_with_slope(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    softcap, mask = options.get("softcap"), options.get("attn_mask")
    if softcap is None or mask is None or mask.dtype is torch.bool:
        return Steps()(query, key, value, **options)

    def unsloped(scores: Tensor, softcap: float) -> Tensor:
        return capped_with_slope(scores, softcap, torch.ones_like(scores))

    def added(scores: Tensor, mask: Tensor) -> Tensor:
        by = (1 - (scores / softcap) ** 2).detach()
        return distorted(add_mask(scores, mask), lambda gradient: gradient * by)

    return Steps(cap=unsloped, add_mask=added)(query, key, value, **options)


@breaks_softcap("softcap.log-sum-exp", extras=("log_sum_exp",), holds=("softcap.formula", "softcap.mask")).entry(
    does="Returns the log-sum-exp of the scores before the cap.",
    repair="Sum the exponentials that the softmax sums.",
    hides="The output; scores far below the cap.",
)
def log_sum_exp_before_the_cap(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    output = Steps()(query, key, value, **options)
    options.pop("softcap", None)
    return output, Steps().answer(query, key, value, **options)[2]
