"""Right weights and log-sum-exps in unusual styles: other bases, made anew from one another, in parts, kept wide."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import (
    INFINITY,
    Steps,
    accumulator,
    log_sum_exp,
)
from attention_conformance.spec.conventions import Conventions, EmptyRow, LogBase
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.reference.styles import LOG2_E, largest, merged, plain_softmax, scores_of
from attention_conformance.tests.selftest.right.right import BOTH, op

TWO = Conventions(log_sum_exp_base=LogBase.TWO)
NAN = Conventions(empty_row_bool=EmptyRow.NAN, empty_row_float=EmptyRow.NAN, empty_row_padding=EmptyRow.NAN)


def to_base_two(scores: Tensor) -> Tensor:
    """Powers and logarithms of 2 throughout."""
    converted = scores * LOG2_E
    top = largest(converted)
    return (converted - top).exp2().sum(-1).log2() + top[..., 0]


def one_by_one(scores: Tensor) -> Tensor:
    """Key after key, as a scan does."""
    total = scores.new_full(scores.shape[:-1], -INFINITY)
    for column in scores.unbind(-1):
        total = torch.logaddexp(total, column)
    return total


def weights_from_the_logarithm(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """The output of one call, the weights made anew as exp(score - log-sum-exp), as next to a fused kernel."""
    output, _, lse = Steps().answer(query, key, value, **options)
    wide = accumulator(query.dtype)
    scores = scores_of(query.to(wide), key.to(wide), options)
    logs = log_sum_exp(scores)[..., None]
    weights = torch.where(logs == -INFINITY, 0.0, (scores - logs).exp())
    return output, weights.to(query.dtype), lse


def kept_wide(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Weights and log-sum-exp in float32 for half types."""
    wide = accumulator(query.dtype)
    rows = (x.to(wide) for x in (query, key, value))
    output, weights, lse = Steps().answer(*rows, **options)
    return output.to(query.dtype), weights, lse


_STYLES: dict[str, tuple[Callable[..., Any], Conventions]] = {
    "to_base_two": (Steps(log_sum_exp=to_base_two).answer, TWO),
    "one_by_one": (Steps(log_sum_exp=one_by_one).answer, Conventions()),
    "eager": (Steps(wide=False).answer, Conventions()),
    "nan_for_empty_rows": (Steps(softmax=plain_softmax).answer, NAN),
    "weights_from_the_logarithm": (weights_from_the_logarithm, Conventions()),
    "kept_wide": (kept_wide, Conventions()),
    "merged": (merged(2), Conventions()),
}
RIGHT = tuple(
    op(name, function, {Feature.GROUPED}, extras=BOTH, conventions=conventions)
    for name, (function, conventions) in _STYLES.items()
)
