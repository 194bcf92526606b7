"""Mistakes of chapter 17 in what is returned in addition to the output: before or after dropout."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, mix
from attention_conformance.implementations.defects.breaking import breaks
from attention_conformance.implementations.defects.dropout import DROPOUT
from attention_conformance.spec.conventions import Conventions, ReturnedWeights

AFTER = Conventions(returned_weights=ReturnedWeights.AFTER_DROPOUT)


def _all_of(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, weights before and after dropout, and log-sum-exp."""
    recorded: list[Tensor] = []

    def mixed(weights: Tensor, rows: Tensor) -> Tensor:
        recorded.append(weights.to(query.dtype))
        return mix(weights, rows)

    output, weights, lse = Steps(mix=mixed).answer(query, key, value, **options)
    return output, weights, recorded[0], lse


breaks_dropout = partial(breaks, claims=DROPOUT)


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
