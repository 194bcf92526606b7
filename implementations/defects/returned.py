"""Mistakes of chapter 2 in what is returned in addition to the output: weights, averaged weights, log-sum-exp."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps, log_sum_exp
from attention_conformance.implementations.defects.breaking import NAN, breaks, github


@breaks("softmax.weights", "masks.zero-weight", extras=("weights",), holds=("masks.bool",)).entry(
    does="Returns the weights of a softmax without the masks.",
    repair="Return the very weights that multiply the values.",
    hides="Calls without a mask, and checks of the output only.",
    matters="Heat maps show attention to padding and to the future that did not take place.",
)
def weights_before_masks(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    plain = Steps().answer(query, key, value, scale=options.get("scale"))
    return Steps()(query, key, value, **options), plain[1]


@breaks(
    "softmax.weights", "softmax.rows-sum-to-one", extras=("weights",), holds=("scores.dot-product", "masks.bool")
).entry(
    does="Returns the exponentials before they are divided by their sum.",
    repair="Divide by the row's sum before returning the weights.",
    hides="Checks of the output only.",
    links=github("Dao-AILab/flash-attention/issues/902"),
)
def weights_not_normalised(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, weights / weights.amax(-1, keepdim=True)


@breaks("softmax.weights", extras=("weights",), holds=("scores.dot-product", "masks.bool")).entry(
    does="Returns the weights with queries and keys exchanged.",
    repair="Return (B, H, Lq, Lk): a row for each query.",
    hides="Symmetric weights, and checks of shapes with as many queries as keys.",
)
def weights_transposed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, weights.mT


@breaks("softmax.averaged-weights", extras=("averaged_weights",), holds=("scores.dot-product",)).entry(
    does="Returns the weights of the first head for the mean of all.",
    repair="Take the mean over the head axis.",
    hides="A single head, and heads that agree.",
)
def weights_of_the_first_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, weights[:, 0]


@breaks("softmax.averaged-weights", extras=("averaged_weights",), holds=("scores.dot-product", "masks.bool")).entry(
    does="Returns the sum of the weights over the heads, not their mean.",
    repair="Divide by the number of heads.",
    hides="A single head.",
    matters="A copy mechanism that reads probabilities from them gets some above 1, and a negative loss.",
)
def weights_summed_over_heads(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, weights.sum(1)


@breaks("softmax.log-sum-exp", "relations.merge", step="log_sum_exp", holds=("softmax.weights",)).entry(
    does="Returns the log-sum-exp to base 2.",
    repair="Multiply by ln 2 before returning: the logarithm is the natural one.",
    hides="Merges by code that works to base 2 as well.",
    matters="Partial results of two libraries merge with the wrong weights.",
)
def logarithm_of_base_two(scores: Tensor) -> Tensor:
    return torch.logsumexp(scores, -1) * 1.4426950408889634


@breaks(
    "softmax.log-sum-exp", "relations.merge", step="log_sum_exp", holds=("softmax.weights", "softmax.large-scores")
).entry(
    does="Returns the logarithm of the shifted sum, without adding the maximum again.",
    repair="Add the row's maximum to the logarithm of the sum of exp(score - maximum).",
    hides="Rows whose maximum is 0, and checks of the output only.",
    matters="Ring attention and split decoding weigh their parts wrongly.",
)
def maximum_not_added_again(scores: Tensor) -> Tensor:
    return log_sum_exp(scores) - scores.amax(-1).clamp(min=torch.finfo(scores.dtype).min)


@breaks(
    "softmax.log-sum-exp", step="log_sum_exp", holds=("softmax.weights", "masks.empty-row-bool"), severity=NAN
).entry(
    does="Returns plus infinity for a row without keys.",
    repair="Return minus infinity, the logarithm of an empty sum.",
    hides="Rows with a key.",
    matters="A merge gives all weight to the part that saw nothing, or NaN.",
    links=github("Dao-AILab/flash-attention/pull/978"),
)
def plus_infinity_for_an_empty_row(scores: Tensor) -> Tensor:
    found = log_sum_exp(scores)
    return torch.where(found == -INFINITY, INFINITY, found)


@breaks("softmax.log-sum-exp", step="log_sum_exp", holds=("softmax.weights", "softmax.rows-sum-to-one")).entry(
    does="Returns 0 for the log-sum-exp of a row without keys.",
    repair="Return minus infinity, the logarithm of an empty sum.",
    hides="Rows with a key.",
    matters="An empty part of the keys takes weight from the others when parts are merged.",
    links=github("pytorch/pytorch/pull/134650"),
)
def zero_for_an_empty_row(scores: Tensor) -> Tensor:
    found = log_sum_exp(scores)
    return torch.where(found == -INFINITY, 0.0, found)


@breaks("softmax.log-sum-exp", extras=("log_sum_exp",), holds=("masks.bool", "causal.square")).entry(
    does="Returns the log-sum-exp of the scores without the masks.",
    repair="Take the log-sum-exp over the keys that the query may attend to.",
    hides="Calls without a mask.",
)
def log_sum_exp_before_masks(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    plain = Steps().answer(query, key, value, scale=options.get("scale"))
    return Steps()(query, key, value, **options), plain[2]
