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
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import failing_checks
from attention_conformance.tests.harness.explain.diagnosis.diagnosis import diagnose
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

LEAST = torch.finfo(torch.float32).min
LOGS = ("returned.*", "softmax.log-sum-exp", "relations.merge")
WITH_LOGS = ("log-of-nothing", "default-scale", "product-precision")
CHANCE = ("dropout.*",)
WINDOWS = ("window.*",)
ABOUT = {
    **{key: {Feature.DROPOUT} for key in ("dropout-sharing", "full-dropout")},
    **{key: {Feature.WINDOW} for key in ("window-count", "padded-positions")},
}
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


def shared_by(*axes: int) -> Steps:
    """One choice of dropout along these axes."""

    def drop(weights: Tensor, rate: float) -> Tensor:
        shape = [1 if axis in axes else extent for axis, extent in enumerate(weights.shape)]
        return weights * (torch.rand(shape) >= rate) / max(1.0 - rate, 1e-30)

    return Steps(drop=drop)


def refusing(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Raises ValueError where everything is to be dropped."""
    if options.get("dropout_p", 0.0) >= 1.0:
        raise ValueError("the probability of dropout is below 1")
    return Steps().answer(query, key, value, **options)


def own_counted_if_causal(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    left, right = options.get("window_size", (-1, -1))
    if options.get("is_causal") and left >= 0:
        hidden = Steps(add_window=lambda scores, ahead, _: correct.add_window(scores, ahead - 1, (left, -1)))
        return hidden.answer(query, key, value, **options | {"window_size": (left, max(right, 0))})
    return Steps().answer(query, key, value, **options)


def to_the_last_real_key(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Sample by sample, each without the padding at its end."""
    padding = options.pop("key_padding_mask", torch.ones(len(key), key.shape[2], dtype=torch.bool))
    mask, rows = options.pop("attn_mask", None), []
    for b, real in enumerate(padding):
        last = int(real.nonzero().max()) + 1 if real.any() else 0
        whole = None if mask is None else mask.broadcast_to(*query.shape[:3], key.shape[2])
        cut = {} if whole is None else {"attn_mask": whole[b : b + 1, ..., :last]}
        steps, own = Steps(add_causal=correct.add_bottom_right), real[None, :last]
        q, k, v = query[b : b + 1], key[b : b + 1, :, :last], value[b : b + 1, :, :last]
        rows.append(steps.answer(q, k, v, key_padding_mask=own, **cut, **options)[0])
    return (torch.cat(rows),)


def among_the_real(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """A window over as many queries as keys, at positions summed up from the padding mask."""
    padding = options.get("key_padding_mask")

    def window(scores: Tensor, ahead: Tensor, extents: tuple[int, int]) -> Tensor:
        if padding is None:
            return correct.add_window(scores, ahead, extents)
        at = padding.cumsum(-1)
        return correct.add_window(scores, at[:, None, :] - at[:, : query.shape[2], None], extents)

    return Steps(add_window=window).answer(query, key, value, **options)


def claiming(function: Any, settings: Mapping[str, str], dtype: str) -> Implementation:
    (convention,) = settings
    returned = {Feature.WEIGHTS, Feature.LOG_SUM_EXP} if convention in WITH_LOGS else set()
    features = OP_FEATURES | returned | ABOUT.get(convention, set())
    answer = getattr(function, "answer", function)
    whole = torch_op(answer, extras=("weights", "log_sum_exp"))
    run_of = whole if returned else torch_op(lambda *inputs, **options: answer(*inputs, **options)[0])
    claims = Claims(Scope.OP, features, Conventions().claiming(settings), dtypes=(dtype,))
    return Implementation("claiming", claims, run_of)


def failing(implementation: Implementation, clauses: tuple[str, ...]) -> set[str]:
    verdicts = run(implementation, clauses)
    assert any(verdict.checks for verdict in verdicts)
    return {v.clause for v in verdicts if v.status in (Status.FAIL, Status.ERROR)}


CLAIMED = [
    (filled(torch.inf), {"log-of-nothing": "plus-infinity"}, "float32", LOGS),
    (filled(torch.nan), {"log-of-nothing": "nan"}, "float32", LOGS),
    (filled(0.7 * LEAST), {"log-of-nothing": "least"}, "float32", LOGS),
    (filled(0.7 * LEAST), {"log-of-nothing": "least"}, "float16", LOGS),
    (Steps(factor=scaled_by_one), {"default-scale": "one"}, "float32", NUMERICS),
    (in_float32, {"product-precision": "float32"}, "float64", NUMERICS),
    (with_products(10), {"product-precision": "tf32"}, "float32", NUMERICS),
    (with_products(7), {"product-precision": "bfloat16"}, "float32", NUMERICS),
    (shared_by(1), {"dropout-sharing": "heads"}, "float64", CHANCE),
    (shared_by(0), {"dropout-sharing": "samples"}, "float64", CHANCE),
    (shared_by(0, 1), {"dropout-sharing": "heads-and-samples"}, "float64", CHANCE),
    (refusing, {"full-dropout": "error"}, "float64", CHANCE),
    (own_counted_if_causal, {"window-count": "including-if-causal"}, "float64", WINDOWS),
    (among_the_real, {"padded-positions": "skipped"}, "float64", ("window.extent", "window.with-padding")),
    (to_the_last_real_key, {"causal-alignment": "bottom-right-real"}, "float64", ("causal.*", "masks.key-padding")),
]


WRONG_SUMS = ("values.weighted-sum", "values.single-key")
SHOWN = (
    *(("returned.empty-row",), ("returned.empty-row",), ("returned.empty-row",), (), ()),
    *(WRONG_SUMS, WRONG_SUMS, WRONG_SUMS),
    *(("dropout.independent",), ("dropout.independent",), (), ("dropout.rate-one",)),
    *(("window.causal",), ("window.with-padding",), ("causal.alignment", "causal.with-padding")),
)
"""For each of them the clauses whose failures are explained; empty where another one covers the same, or a mistake."""


@pytest.mark.parametrize(("function", "settings", "dtype", "clauses"), CLAIMED)
def test_a_claim_that_is_true_holds_and_the_default_does_not(
    function: Any, settings: Mapping[str, str], dtype: str, clauses: tuple[str, ...]
) -> None:
    right = claiming(function, settings, dtype)
    assert not failing(right, clauses)
    if dtype != "float16":  # which holds no number near the least one
        assert failing(replace(right, claims=replace(right.claims, conventions=Conventions())), clauses)


NAMED = [(*each[:3], clauses) for each, clauses in zip(CLAIMED, SHOWN, strict=True) if clauses]


@pytest.mark.parametrize(("function", "settings", "dtype", "clauses"), NAMED)
def test_who_follows_it_without_a_claim_is_given_the_option(
    function: Any, settings: Mapping[str, str], dtype: str, clauses: tuple[str, ...]
) -> None:
    made = claiming(function, settings, dtype)
    unclaimed = replace(made, claims=replace(made.claims, conventions=Conventions()))
    diagnosis = diagnose(unclaimed, failing_checks(run(unclaimed, clauses)))
    option = next(f"{key}={value}" for key, value in settings.items())
    assert diagnosis is not None
    assert f"add --convention {option}" in str(diagnosis)


@pytest.mark.parametrize(("bits", "claimed"), [(6, "tf32"), (10, "float32")])
def test_operands_of_fewer_bits_than_are_claimed(bits: int, claimed: str) -> None:
    wrong = claiming(with_products(bits), {"product-precision": claimed}, "float32")
    assert "values.single-key" in failing(wrong, ("values.*",))


def test_half_of_the_least_number_is_the_limit() -> None:
    assert "returned.empty-row" in failing(claiming(filled(0.3 * LEAST), {"log-of-nothing": "least"}, "float32"), LOGS)
