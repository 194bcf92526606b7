"""Chapter 17, dropout: which weights are dropped, what becomes of the others, and when nothing is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from attention_conformance.implementations.api.global_state import global_state, random_states_from
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.expected import RETURNED, Expected, solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Values
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.dropout_mask import (
    Booleans,
    by_key,
    likely_share,
    relation,
    repetition,
    seen,
)
from attention_conformance.tests.harness.judge.judge import Judge, part_of

SHOWN = (
    Case(score_std=1.0, values=Values.IDENTITY)
    .sized(key_length=8, d_k=16, d_v=16)
    .extended(dropout=0.5, dropout_seed=1)
)
"""Every weight shows in two components of the output, 240 of them."""
MANY = SHOWN.sized(num_heads=4, query_length=32, key_length=32, d_k=32, d_v=32)
"""8192 weights, for what only many of them tell."""
LONG = MANY.sized(batch=1, num_heads=2, query_length=160, key_length=64, d_k=64, d_v=64)
"""More queries than a tile has."""
WIDE = SHOWN.sized(batch=1, num_heads=2, query_length=3, key_length=130, d_k=130, d_v=130)
"""More keys than a tile has."""
GROUPED = SHOWN.sized(num_heads=6, num_kv_heads=3)
PLAIN = Case().extended(dropout=0.5, dropout_seed=1)


@clause("dropout.factors")
def test_factors(judge: Judge) -> None:
    for case in judge.cases(
        SHOWN, SHOWN.extended(dropout=0.25, dropout_seed=2), SHOWN.extended(dropout=0.9, dropout_seed=3), GROUPED
    ):
        if (found := seen(judge, case)) is not None:
            meant = found.expected(judge)["output"]
            first = [by_key(found.problem, array)[..., 0, :] for array in (meant.value, meant.bound)]
            judge.record(case, compare("output", found.shown[..., 0, :], Expected(*first), judge.dtype), found.told)


@clause("dropout.whole-key")
def test_whole_key(judge: Judge) -> None:
    for case in judge.cases(SHOWN, SHOWN.extended(dropout_seed=2), GROUPED):
        found = seen(judge, case)
        if found is not None and found.shown.shape[-2] > 1:
            some = found.shown != 0
            parted = np.argwhere((some != some[..., :1, :]).any(-2))
            told = "" if not len(parted) else "sample {} head {} query {} key {}".format(*parted[0])
            judge.assert_that(case, not told, "one value component has lost a key that another one keeps", told)


@clause("dropout.rate")
def test_rate(judge: Judge) -> None:
    for case in judge.cases(
        *(MANY.extended(dropout=rate, dropout_seed=n) for n, rate in enumerate((0.1, 0.5, 0.9), start=1))
    ):
        if (found := seen(judge, case)) is not None:
            chosen, rate = found.chosen, case.extension.dropout
            context = f"{1.0 - chosen.mean():.4f} of {chosen.size} weights are dropped, at the probability {rate:g}"
            judge.assert_that(case, likely_share(chosen, 1.0 - rate), context)


@clause("dropout.independent")
def test_independent(judge: Judge) -> None:
    for case in judge.cases(MANY, LONG.extended(dropout_seed=2), MANY.sized(num_kv_heads=2)):
        if (found := seen(judge, case)) is not None:
            distance = repetition(found.chosen)
            apart = "samples {}, heads {}, queries {}, keys {}".format(*np.unravel_index(distance, found.chosen.shape))
            judge.assert_that(case, not distance, f"the choices repeat themselves at a distance of {apart}")


@clause("dropout.with-masks")
def test_with_masks(judge: Judge) -> None:
    masks = (
        (MaskKind.BOOL, MaskShape.FULL),
        (MaskKind.FLOAT, MaskShape.SHARED),
        (MaskKind.INFINITE, MaskShape.HEAD),
    )
    cases = [replace(SHOWN, mask=kind, mask_shape=shape) for kind, shape in masks]
    cases += [replace(SHOWN, padding=Padding.LEFT), replace(SHOWN, causal=True).sized(query_length=8)]
    for case in judge.cases(*cases):
        if (found := seen(judge, case)) is not None:
            compared = compare("output", found.result.output, found.expected(judge)["output"], judge.dtype)
            judge.record(case, compared, f"beside a mask, {found.told}")


@clause("dropout.gradients")
def test_gradients(judge: Judge) -> None:
    float_mask = replace(SHOWN, mask=MaskKind.FLOAT)
    for case in judge.cases(SHOWN, SHOWN.extended(dropout=0.25, dropout_seed=2), GROUPED, float_mask, WIDE):
        if (found := seen(judge, case, gradients=True)) is not None:
            expected = found.expected(judge)
            for part in (f"gradients.{name}" for name in found.problem.needs):
                got = part_of(found.result, part)
                context = (
                    f"{part} is on the whole {_slope(got, expected[part].value):.2g} times that of the forward pass"
                )
                judge.record(case, compare(part, got, expected[part], judge.dtype), context)


def _slope(got: Array | None, expected: Array) -> float:
    """The factor by which the expected array comes nearest to what was got."""
    if got is None or got.shape != expected.shape or not expected.any():
        return np.nan
    return float((got.astype(np.float64) * expected).sum() / (expected**2).sum())


@clause("dropout.returned-weights")
def test_returned_weights(judge: Judge) -> None:
    _assert_returned(judge, "weights")


@clause("dropout.averaged-weights")
def test_averaged_weights(judge: Judge) -> None:
    _assert_returned(judge, "averaged_weights")


@clause("dropout.log-sum-exp")
def test_log_sum_exp(judge: Judge) -> None:
    _assert_returned(judge, "log_sum_exp")


def _assert_returned(judge: Judge, part: str) -> None:
    for case in judge.cases(SHOWN, SHOWN.extended(dropout=0.25, dropout_seed=2), replace(SHOWN, mask=MaskKind.BOOL)):
        if (found := seen(judge, case)) is not None:
            got, expected = part_of(found.result, part), found.expected(judge)[part]
            judge.record(case, compare(part, got, expected, judge.dtype), _told(judge, part, got))


def _told(judge: Judge, part: str, got: Array | None) -> str:
    if part == "log_sum_exp" or got is None or not got.size:
        return "dropped keys count as well"
    sums = got.astype(np.float64).sum(-1)
    return f"claimed to be {judge.conventions.returned_weights}, rows sum to {sums.min():.3g} to {sums.max():.3g}"


@clause("dropout.seed")
def test_seed(judge: Judge) -> None:
    for case in judge.cases(MANY):
        first, again, other = (_chosen(judge, each) for each in (case, case, case.extended(dropout_seed=2)))
        if first is not None and again is not None and other is not None:
            judge.assert_that(case, np.array_equal(first, again), "the same seed drops other weights")
            judge.assert_that(case, (places := relation(first, other)) is None, _after("another seed", places))


@clause("dropout.next-call")
def test_next_call(judge: Judge) -> None:
    for seed, case in product((1, 2), judge.cases(MANY.extended(dropout_seed=-1))):
        with random_states_from(seed):
            first, second = (_chosen(judge, case) for _ in range(2))
        if first is not None and second is not None:
            judge.assert_that(case, (places := relation(first, second)) is None, _after("the next call", places))


def _chosen(judge: Judge, case: Case) -> Booleans | None:
    found = seen(judge, case)
    return None if found is None else found.chosen


def _after(what: str, places: int | None) -> str:
    return f"{what} drops what was dropped before, {places} places on"


@clause("dropout.rate-zero")
def test_rate_zero(judge: Judge) -> None:
    for case in judge.cases(PLAIN.extended(dropout=0.0), replace(PLAIN, mask=MaskKind.BOOL).extended(dropout=0.0)):
        _assert_drops_nothing(judge, case, "the probability of dropout is 0")


@clause("dropout.evaluation")
def test_evaluation(judge: Judge) -> None:
    told = PLAIN.extended(evaluation=True, dropout_seed=-1)
    for case in judge.cases(told, replace(told, mask=MaskKind.BOOL).extended(dropout=0.9)):
        _assert_drops_nothing(judge, case, "evaluation mode")


def _assert_drops_nothing(judge: Judge, case: Case, context: str) -> None:
    """The answer is that without dropout, and no generator of random numbers has moved."""
    problem = judge.problem(case)
    with random_states_from(1):
        before = global_state()
        try:
            result = judge.run(problem)
        except CandidateError as error:
            judge.record_error(case, error)
            return
        after = global_state()
    expected = judge.expected(case, gradients=problem.cotangent is not None)
    for part in _expanded(judge, problem):
        judge.record(case, compare(part, part_of(result, part), expected[part], judge.dtype), context)
    moved = [name for name in before if name.startswith("random state") and before[name] != after[name]]
    judge.assert_that(case, not moved, f"{context}, and the call changed the {', '.join(moved)}")


def _expanded(judge: Judge, problem: Problem) -> Iterator[str]:
    """The parts that are claimed, each gradient by its name."""
    yield from (part for part in judge.parts() if part != "gradients")
    yield from (f"gradients.{name}" for name in problem.needs if Feature.GRADIENTS in judge.claims)


@clause("dropout.rate-one")
def test_rate_one(judge: Judge) -> None:
    for case in judge.cases(PLAIN.extended(dropout=1.0), replace(PLAIN, mask=MaskKind.BOOL).extended(dropout=1.0)):
        problem = judge.problem(case)
        try:
            result = judge.run(problem)
        except CandidateError as error:
            judge.record_error(case, error)
            continue
        expected = solve(problem, judge.conventions, np.zeros(judge.solution(case).trace.weights.shape)).parts
        for part in (part for part in _expanded(judge, problem) if part not in RETURNED):
            compared = compare(part, part_of(result, part), expected[part], judge.dtype)
            judge.record(case, compared, "every weight is dropped")
