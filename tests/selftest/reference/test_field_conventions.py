"""Conventions of the field beyond the defaults: who claims them rightly conforms, and who claims others does not."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

LEAST = torch.finfo(torch.float32).min
LOGS = ("returned.*", "softmax.log-sum-exp", "relations.merge")
NUMERICS = ("numerics.*", "scores.*", "softmax.*", "gradients.*", "values.*")


def filled(number: float) -> Steps:
    """With this log-sum-exp of rows without keys."""

    def log_sum_exp(scores: Tensor) -> Tensor:
        logs = correct.log_sum_exp(scores)
        return torch.where(torch.isneginf(logs), number, logs)

    return Steps(log_sum_exp=log_sum_exp)


def scaled_by_one(query: Tensor, scale: float | None) -> float:
    return 1.0 if scale is None else scale


class Rounded(torch.autograd.Function):
    """A product whose operands keep some bits behind the point, there and back; sums are in their dtype."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, bits: int) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.bits = bits
        return cut(left, bits) @ cut(right, bits)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        (left, right), (given,) = ctx.saved_tensors, upstream
        return cut(given, ctx.bits) @ cut(right.mT, ctx.bits), cut(left.mT, ctx.bits) @ cut(given, ctx.bits), None


def cut(x: Tensor, bits: int) -> Tensor:
    """The nearest number with so many bits behind the point."""
    lost = 23 - bits
    words = x.contiguous().view(torch.int32)
    return ((words + (1 << (lost - 1))) & -(1 << lost)).view(torch.float32)


def with_products(bits: int) -> Steps:
    def score(query: Tensor, key: Tensor, by: float) -> Tensor:
        scores: Tensor = Rounded.apply(query, key.mT, bits)  # type: ignore[no-untyped-call]
        return scores * by

    def mix(weights: Tensor, value: Tensor) -> Tensor:
        mixed: Tensor = Rounded.apply(weights, value, bits)  # type: ignore[no-untyped-call]
        return mixed

    return Steps(score=score, mix=mix)


def in_float32(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Everything in float32, whatever the input is."""
    given = {n: o.float() if isinstance(o, Tensor) and o.is_floating_point() else o for n, o in options.items()}
    parts = Steps().answer(query.float(), key.float(), value.float(), **given)
    return tuple(part.to(query.dtype) for part in parts)


def claiming(function: Any, settings: Mapping[str, str], dtype: str) -> Implementation:
    features = OP_FEATURES | {Feature.WEIGHTS, Feature.LOG_SUM_EXP}
    run_of = torch_op(getattr(function, "answer", function), extras=("weights", "log_sum_exp"))
    claims = Claims(Scope.OP, features, Conventions().claiming(settings), dtypes=(dtype,))
    return Implementation("claiming", claims, run_of)


def failing(implementation: Implementation, clauses: tuple[str, ...]) -> set[str]:
    verdicts = run(implementation, clauses)
    assert any(verdict.checks for verdict in verdicts)
    return {v.clause for v in verdicts if v.status in (Status.FAIL, Status.ERROR)}


CLAIMED = [
    (filled(torch.inf), {"log-of-nothing": "plus-infinity"}, "float32", LOGS),
    (filled(0.7 * LEAST), {"log-of-nothing": "least"}, "float32", LOGS),
    (filled(0.7 * LEAST), {"log-of-nothing": "least"}, "float16", LOGS),
    (Steps(factor=scaled_by_one), {"default-scale": "one"}, "float32", NUMERICS),
    (in_float32, {"product-precision": "float32"}, "float64", NUMERICS),
    (with_products(10), {"product-precision": "tf32"}, "float32", NUMERICS),
    (with_products(7), {"product-precision": "bfloat16"}, "float32", NUMERICS),
]


@pytest.mark.parametrize(("function", "settings", "dtype", "clauses"), CLAIMED)
def test_a_claim_that_is_true_holds_and_the_default_does_not(
    function: Any, settings: Mapping[str, str], dtype: str, clauses: tuple[str, ...]
) -> None:
    right = claiming(function, settings, dtype)
    assert not failing(right, clauses)
    if dtype != "float16":  # which holds no number near the least one
        assert failing(replace(right, claims=replace(right.claims, conventions=Conventions())), clauses)


@pytest.mark.parametrize(("bits", "claimed"), [(7, "tf32"), (10, "float32")])
def test_operands_of_fewer_bits_than_are_claimed(bits: int, claimed: str) -> None:
    wrong = claiming(with_products(bits), {"product-precision": claimed}, "float32")
    assert "values.single-key" in failing(wrong, ("values.*",))


def test_half_of_the_least_number_is_the_limit() -> None:
    assert "returned.empty-row" in failing(claiming(filled(0.3 * LEAST), {"log-of-nothing": "least"}, "float32"), LOGS)
