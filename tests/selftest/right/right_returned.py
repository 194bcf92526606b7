"""Right weights and log-sum-exps in unusual styles: other bases, made anew from one another, in parts, kept wide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import (
    INFINITY,
    Steps,
    accumulator,
    log_sum_exp,
    repeat_kv,
    softmax,
)
from attention_conformance.spec.conventions import Conventions, EmptyRow, LogBase
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.reference.styles import LOG2_E, largest, plain_softmax
from attention_conformance.tests.selftest.right.right import BOTH, op

TWO = Conventions(log_sum_exp_base=LogBase.TWO)
NAN = Conventions(empty_row_bool=EmptyRow.NAN, empty_row_float=EmptyRow.NAN, empty_row_padding=EmptyRow.NAN)


def to_base_two(scores: Tensor) -> Tensor:
    """Powers and logarithms of 2 throughout."""
    rotated = scores * LOG2_E
    top = largest(rotated)
    return (rotated - top).exp2().sum(-1).log2() + top[..., 0]


def one_by_one(scores: Tensor) -> Tensor:
    """Key after key, as a scan does."""
    found = scores.new_full(scores.shape[:-1], -INFINITY)
    for column in scores.unbind(-1):
        found = torch.logaddexp(found, column)
    return found


def weights_from_the_logarithm(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """The output of one call, the weights made anew as exp(score - log-sum-exp), as beside a fused kernel."""
    output, _, lse = Steps().answer(query, key, value, **options)
    wide = accumulator(query.dtype)
    seen: list[Tensor] = []

    def kept(scores: Tensor) -> Tensor:
        seen.append(scores)
        return softmax(scores)

    Steps(softmax=kept)(query, key, value, **options)
    logs = log_sum_exp(seen[0]).to(wide)
    weights = torch.where(logs[..., None] == -INFINITY, 0.0, (seen[0] - logs[..., None]).exp())
    return output, weights.to(query.dtype), lse


def kept_wide(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Weights and log-sum-exp in float32 for half types."""
    wide = accumulator(query.dtype)
    rows = (x.to(wide) for x in (query, key, value))
    output, weights, lse = Steps().answer(*rows, **options)
    return output.to(query.dtype), weights, lse


def merged_by_halves(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Two halves of the keys, merged; a maximum of minus infinity counts as 0."""
    wide = accumulator(query.dtype)
    q, k, v = (x.to(wide) for x in (query, key, value))
    options.pop("enable_gqa", None)
    k, v = repeat_kv(k, q.shape[1]), repeat_kv(v, q.shape[1])
    scores = _scores(q, k, options)
    middle = key.shape[-2] // 2
    parts = [(scores[..., :middle], v[..., :middle, :]), (scores[..., middle:], v[..., middle:, :])]
    logs = torch.stack([log_sum_exp(s) for s, _ in parts], -1)
    top = largest(logs)[..., 0]
    sums = (logs - top[..., None]).exp()
    whole = sums.sum(-1)
    shares = sums / torch.where(whole == 0, 1.0, whole)[..., None]
    weights = torch.cat([softmax(s) * shares[..., n, None] for n, (s, _) in enumerate(parts)], -1)
    mixed = [(softmax(s) @ rows) * shares[..., n, None] for n, (s, rows) in enumerate(parts)]
    answer = mixed[0] + mixed[1], weights, whole.log() + top
    return tuple(x.to(query.dtype) for x in answer)


def _scores(q: Tensor, k: Tensor, options: dict[str, Any]) -> Tensor:
    """Scaled and masked."""
    steps = Steps(softmax=lambda scores: scores, mix=lambda scores, v: scores)
    return steps(q, k, k, **options)


_STYLES: dict[str, tuple[Callable[..., Any], Conventions]] = {
    "to_base_two": (Steps(log_sum_exp=to_base_two).answer, TWO),
    "one_by_one": (Steps(log_sum_exp=one_by_one).answer, Conventions()),
    "eager": (Steps(wide=False).answer, Conventions()),
    "nan_for_empty_rows": (Steps(softmax=plain_softmax).answer, NAN),
    "weights_from_the_logarithm": (weights_from_the_logarithm, Conventions()),
    "kept_wide": (kept_wide, Conventions()),
    "merged_by_halves": (merged_by_halves, Conventions()),
}
RIGHT = tuple(
    op(name, function, {Feature.GROUPED}, extras=BOTH, conventions=conventions)
    for name, (function, conventions) in _STYLES.items()
)
