"""Mistakes of chapter 17 in what dropout does to the weights, in its gradients, and in what is returned."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, drop, mix, softmax
from attention_conformance.implementations.defects.breaking import GRADIENT, breaks, omitting
from attention_conformance.implementations.defects.gradients import distorted
from attention_conformance.spec.conventions import Conventions, ReturnedWeights
from attention_conformance.spec.features import Feature

DROPOUT = frozenset({Feature.DROPOUT})


def chosen(like: Tensor, rate: float) -> Tensor:
    """1 where an element remains, 0 where it is dropped."""
    return (torch.rand(like.shape) >= rate).to(like.dtype)


def normalised(weights: Tensor) -> Tensor:
    """Rows divided by their sum, where that is not 0."""
    whole = weights.sum(-1, keepdim=True)
    return weights / torch.where(whole == 0, 1.0, whole)


breaks_dropout = partial(breaks, claims=DROPOUT)
breaks_drop = partial(breaks_dropout, step="drop")
breaks_drop_gradients = partial(
    breaks_drop,
    holds=("dropout.factors", "dropout.independent", "gradients.query", "gradients.value"),
    severity=GRADIENT,
)


@breaks_drop("dropout.rate", "dropout.factors", "dropout.seed", holds=("dropout.rate-zero", "dropout.whole-key"))
def dropout_ignored(weights: Tensor, rate: float) -> Tensor:
    return weights


@breaks_drop("dropout.factors", holds=("dropout.whole-key", "dropout.rate", "dropout.independent", "dropout.rate-zero"))
def remaining_weights_not_rescaled(weights: Tensor, rate: float) -> Tensor:
    return weights * chosen(weights, rate)


@breaks_drop("dropout.factors", holds=("dropout.whole-key", "dropout.rate", "dropout.independent", "dropout.rate-zero"))
def rescaled_by_the_rate(weights: Tensor, rate: float) -> Tensor:
    return weights * chosen(weights, rate) / rate


@breaks_drop("dropout.factors", holds=("dropout.whole-key", "dropout.rate", "dropout.independent", "dropout.rate-zero"))
def rows_normalised_after_dropout(weights: Tensor, rate: float) -> Tensor:
    return normalised(weights * chosen(weights, rate))


@breaks_dropout("dropout.factors", "dropout.rate", holds=("dropout.rate-zero", "dropout.whole-key"))
def dropout_of_the_scores(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **options: Any) -> Tensor:
    def weights(scores: Tensor) -> Tensor:
        return softmax(torch.where(scores.isinf(), scores, drop(scores, dropout_p)))

    return (Steps(softmax=weights) if dropout_p else Steps())(query, key, value, **options)


@breaks_dropout(
    "dropout.whole-key",
    "dropout.gradients",
    holds=("dropout.rate", "dropout.independent", "dropout.factors", "dropout.rate-zero"),
)
def dropout_of_the_output(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    return drop(output, dropout_p) if dropout_p else output


@breaks_dropout("dropout.whole-key", "dropout.independent", holds=("dropout.rate-zero", "dropout.factors"))
def dropout_of_the_values(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **options: Any) -> Tensor:
    return Steps()(query, key, drop(value, dropout_p) if dropout_p else value, **options)


@breaks_drop("dropout.rate", holds=("dropout.factors", "dropout.independent", "dropout.whole-key", "dropout.gradients"))
def rate_taken_for_its_complement(weights: Tensor, rate: float) -> Tensor:
    return weights * chosen(weights, 1.0 - rate) / (1.0 - rate)


@breaks_drop("dropout.rate", holds=("dropout.factors", "dropout.independent", "dropout.gradients"))
def rate_in_eighths(weights: Tensor, rate: float) -> Tensor:
    return weights * chosen(weights, int(rate * 8) / 8) / (1.0 - rate)


@breaks_dropout("dropout.with-masks", holds=("dropout.factors", "dropout.rate", "dropout.rate-zero"))
def dropout_lost_with_a_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("dropout_p", options, "attn_mask", "key_padding_mask"))


@breaks_dropout("dropout.with-masks", holds=("dropout.factors", "dropout.rate", "masks.bool"))
def normalised_after_dropout_with_a_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    rate = options.pop("dropout_p", 0.0)

    def weights(scores: Tensor) -> Tensor:
        dropped = drop(softmax(scores), rate)
        return normalised(dropped) if scores.isinf().any() else dropped

    return (Steps(softmax=weights) if rate else Steps())(query, key, value, **options)


@breaks_drop_gradients("dropout.gradients")
def other_weights_dropped_in_the_backward_pass(weights: Tensor, rate: float) -> Tensor:
    dropped_anew = partial(drop, rate=rate)
    return distorted(weights, dropped_anew, dropped_anew)


@breaks_drop_gradients("dropout.gradients")
def gradient_past_dropout(weights: Tensor, rate: float) -> Tensor:
    return weights + (drop(weights, rate) - weights).detach()


@breaks_drop_gradients("dropout.gradients")
def gradient_not_rescaled(weights: Tensor, rate: float) -> Tensor:
    factors = chosen(weights, rate)
    return weights * factors + (weights * factors * (1.0 / (1.0 - rate) - 1.0)).detach()


@breaks_dropout("dropout.gradients", holds=("dropout.factors", "gradients.query", "gradients.value"), severity=GRADIENT)
def dropped_weights_in_the_derivative(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0, **options: Any
) -> Tensor:
    def weights(scores: Tensor) -> Tensor:
        dropped = drop(softmax(scores), dropout_p).detach()

        def derivative(gradient: Tensor) -> Tensor:
            return dropped * (gradient - (gradient * dropped).sum(-1, keepdim=True))

        return distorted(scores, derivative, lambda _: dropped.clone())

    return (Steps(softmax=weights) if dropout_p else Steps())(query, key, value, **options)


AFTER = Conventions(returned_weights=ReturnedWeights.AFTER_DROPOUT)


def _all_of(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, weights before and after dropout, and log-sum-exp."""
    recorded: list[Tensor] = []

    def mixed(weights: Tensor, rows: Tensor) -> Tensor:
        recorded.append(weights.to(query.dtype))
        return mix(weights, rows)

    output, weights, lse = Steps(mix=mixed).answer(query, key, value, **options)
    return output, weights, recorded[0], lse


@breaks_dropout("dropout.returned-weights", extras=("weights",), holds=("dropout.factors", "softmax.weights"))
def weights_returned_after_dropout(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, _, dropped, _ = _all_of(query, key, value, **options)
    return output, dropped


@breaks_dropout(
    "dropout.returned-weights", extras=("weights",), conventions=AFTER, holds=("dropout.factors", "softmax.weights")
)
def weights_returned_before_dropout(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return Steps().answer(query, key, value, **options)[:2]


@breaks_dropout(
    "dropout.averaged-weights", extras=("averaged_weights",), holds=("dropout.factors", "softmax.averaged-weights")
)
def average_taken_after_dropout(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, _, dropped, _ = _all_of(query, key, value, **options)
    return output, dropped.mean(1)


@breaks_dropout("dropout.returned-weights", extras=("weights",), holds=("dropout.factors", "softmax.weights"))
def dropped_weights_returned_negative(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, dropped, _ = _all_of(query, key, value, **options)
    return output, torch.where(dropped == 0, -weights, weights)


@breaks_dropout("dropout.log-sum-exp", extras=("log_sum_exp",), holds=("dropout.factors", "softmax.log-sum-exp"))
def log_sum_exp_without_dropped_keys(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, dropped, lse = _all_of(query, key, value, **options)
    left = torch.where(dropped == 0, 0.0, weights).sum(-1)
    return output, lse + left.log()
