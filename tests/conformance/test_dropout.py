"""Chapter 17, dropout: which weights are dropped, what becomes of the others, and when nothing is dropped."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from attention_conformance.implementations.api.contract import RANDOM_STATE
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.implementations.worker.observer import RANDOM
from attention_conformance.reference.expected import RETURNED, solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Values
from attention_conformance.spec.conventions import FullDropout
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause, group
from attention_conformance.tests.harness.judge.comparison import compare, part_of
from attention_conformance.tests.harness.judge.dropout_mask import (
    Booleans,
    by_key,
    counted,
    dropout_answer,
    dropout_answers,
    likely_share,
    relation,
    repetition,
    shown_cases,
)
from attention_conformance.tests.harness.judge.judge import Judge

SHOWN = (
    Case(score_std=1.0, values=Values.IDENTITY)
    .sized(key_length=8, d_k=16, d_v=16)
    .extended(dropout=0.5, dropout_seed=1)
)
"""Every weight shows in two components of the output, 240 of them."""
MANY = SHOWN.sized(num_heads=4, query_length=32, key_length=32, d_k=32, d_v=32)
"""8192 weights, for statistics."""
HIDING = MANY.sizes.query_length
"""Times as many samples, where the last of the queries alone sees every key."""
LONG = MANY.sized(batch=1, num_heads=2, query_length=160, key_length=64, d_k=64, d_v=64)
"""More queries than a tile has."""
WIDE = SHOWN.sized(batch=1, num_heads=2, query_length=3, key_length=130, d_k=130, d_v=130)
"""More keys than a tile has."""
QUARTER = SHOWN.extended(dropout=0.25, dropout_seed=2)
GROUPED = SHOWN.sized(num_heads=6, num_kv_heads=3)
PLAIN = Case().extended(dropout=0.5, dropout_seed=1)


@clause("dropout.factors")
def test_factors(judge: Judge) -> None:
    for case, answer in dropout_answers(judge, SHOWN, QUARTER, SHOWN.extended(dropout=0.9, dropout_seed=3), GROUPED):
        first = answer.expected(judge)["output"].only(partial(_first_copy, answer.problem))
        judge.record(case, compare("output", answer.copies[..., 0, :], first, judge.dtype), answer.factors)


def _first_copy(problem: Problem, output: Array) -> Array:
    return by_key(problem, output)[..., 0, :]


@clause("dropout.whole-key")
def test_whole_key(judge: Judge) -> None:
    for case, answer in dropout_answers(judge, SHOWN, SHOWN.extended(dropout_seed=2), GROUPED):
        if answer.copies.shape[-2] > 1:
            kept = answer.copies != 0
            differ = np.argwhere((kept != kept[..., :1, :]).any(-2))
            place = "" if not len(differ) else "sample {} head {} query {} key {}".format(*differ[0])
            judge.assert_that(case, not place, "one value component has lost a key that another one keeps", place)


@clause("dropout.rate")
def test_rate(judge: Judge) -> None:
    rates = (_many(judge).extended(dropout=rate, dropout_seed=n) for n, rate in enumerate((0.1, 0.5, 0.9), start=1))
    for case, answer in dropout_answers(judge, *rates):
        if (mask := counted(judge, answer)) is None:
            continue
        rate = case.extension.dropout
        message = f"{1.0 - mask.mean():.4f} of {mask.size} weights are dropped, at the probability {rate:g}"
        judge.assert_that(case, likely_share(mask, 1.0 - rate), message)


@clause("dropout.independent")
def test_independent(judge: Judge) -> None:
    many = _many(judge)
    for case, answer in dropout_answers(judge, many, LONG.extended(dropout_seed=2), many.sized(num_kv_heads=2)):
        if (own := counted(judge, answer)) is None:
            continue
        sharing = judge.conventions.dropout_sharing
        judge.assert_that(case, bool((own == answer.dropout_mask).all()), f"the choices are not shared by {sharing}")
        distance = repetition(own)
        apart = "samples {}, heads {}, queries {}, keys {}".format(*np.unravel_index(distance, own.shape))
        judge.assert_that(case, not distance, f"the choices repeat themselves at a distance of {apart}")


@clause("dropout.with-masks")
def test_with_masks(judge: Judge) -> None:
    masks = ((MaskKind.BOOL, MaskShape.FULL), (MaskKind.FLOAT, MaskShape.SHARED), (MaskKind.INFINITE, MaskShape.HEAD))
    cases = [replace(SHOWN, mask=kind, mask_shape=shape) for kind, shape in masks]
    cases += [replace(SHOWN, padding=Padding.LEFT), replace(SHOWN, causal=True).sized(query_length=8)]
    for case, answer in dropout_answers(judge, *cases):
        context = f"combined with a mask, {answer.factors}"
        judge.compare(case, answer.result, answer.expected(judge), ("output",), context)


@clause("dropout.gradients")
def test_gradients(judge: Judge) -> None:
    float_mask = replace(SHOWN, mask=MaskKind.FLOAT)
    for case, answer in dropout_answers(judge, SHOWN, QUARTER, GROUPED, float_mask, WIDE, gradients=True):
        expected = answer.expected(judge)
        kept = RANDOM_STATE not in answer.result.disturbed
        judge.assert_that(case, kept, f"the call changed {RANDOM_STATE}")
        for part in judge.expanded(("gradients",), answer.problem):
            slope = _slope(part_of(answer.result, part), expected[part].value)
            context = f"{part} is on the whole {slope:.2g} times that of the forward pass"
            judge.compare(case, answer.result, expected, (part,), context)


def _slope(got: Array | None, expected: Array) -> float:
    """The factor by which the expected array comes nearest to the returned one."""
    if got is None or got.shape != expected.shape or not expected.any():
        return np.nan
    return float((got.astype(np.float64) * expected).sum() / (expected**2).sum())


def _assert_returned(judge: Judge, part: str) -> None:
    for case, answer in dropout_answers(judge, SHOWN, QUARTER, replace(SHOWN, mask=MaskKind.BOOL)):
        context = _sums(judge, part, part_of(answer.result, part))
        judge.compare(case, answer.result, answer.expected(judge), (part,), context)


RETURNED_PARTS = {
    "dropout.returned-weights": "weights",
    "dropout.averaged-weights": "averaged_weights",
    "dropout.log-sum-exp": "log_sum_exp",
}
RETURNED_CLAUSES = group(_assert_returned, RETURNED_PARTS)


def _sums(judge: Judge, part: str, got: Array | None) -> str:
    if part == "log_sum_exp" or got is None or not got.size:
        return "dropped keys count as well"
    sums = got.astype(np.float64).sum(-1)
    return f"claimed to be {judge.conventions.returned_weights}, rows sum to {sums.min():.3g} to {sums.max():.3g}"


@clause("dropout.seed")
def test_seed(judge: Judge) -> None:
    shown = list(shown_cases(judge, _many(judge)))
    for case in shown:
        first, again, other = (_dropout_mask(judge, each) for each in (case, case, case.extended(dropout_seed=2)))
        if first is not None and again is not None and other is not None:
            judge.assert_that(case, np.array_equal(first, again), "the same seed drops other weights")
            _assert_unrelated(judge, case, "another seed", first, other)
    for case in judge.cases(PLAIN) if not shown else ():  # where no inputs show each weight in a component of its own
        _assert_other_outputs(judge, case, case, case.extended(dropout_seed=2))


def _assert_other_outputs(judge: Judge, first: Case, again: Case, other: Case) -> None:
    results = [judge.answer(each, judge.problem(each).forward_only()) for each in (first, again, other)]
    one, same, another = (None if each is None else each.output for each in results)
    if one is not None and same is not None and another is not None:
        judge.assert_that(first, np.array_equal(one, same, equal_nan=True), "the same seed gives another answer")
        judge.assert_that(first, not np.array_equal(one, another, equal_nan=True), "another seed gives the same answer")


@clause("dropout.next-call")
def test_next_call(judge: Judge) -> None:
    for seed, case in product((1, 2), shown_cases(judge, _many(judge, seed=-1)) if judge.observes("seed") else ()):
        with judge.observer.seeded(seed):
            first, second = (_dropout_mask(judge, case) for _ in range(2))
        if first is not None and second is not None:
            _assert_unrelated(judge, case, "the next call", first, second)


def _many(judge: Judge, seed: int = 1) -> Case:
    """As many weights of queries that see every key, whatever is always hidden."""
    whole = MANY.extended(dropout_seed=seed)
    return whole.sized(batch=HIDING * MANY.sizes.batch) if judge.claims.premises.hides_later else whole


def _dropout_mask(judge: Judge, case: Case) -> Booleans | None:
    answer = dropout_answer(judge, case)
    return None if answer is None else counted(judge, answer)


def _assert_unrelated(judge: Judge, case: Case, later: str, first: Booleans, second: Booleans) -> None:
    distance = relation(first, second)
    message = f"{later} drops what was dropped before, at a distance of {distance}"
    judge.assert_that(case, distance is None, message)


@clause("dropout.rate-zero")
def test_rate_zero(judge: Judge) -> None:
    cases = (PLAIN.extended(dropout=0.0), replace(PLAIN, mask=MaskKind.BOOL).extended(dropout=0.0))
    for case in judge.cases(*cases) if judge.observes("changed_state") else ():
        _assert_drops_nothing(judge, case, "the probability of dropout is 0")


@clause("dropout.evaluation")
def test_evaluation(judge: Judge) -> None:
    plain = PLAIN.extended(evaluation=True, dropout_seed=-1)
    cases = (plain, replace(plain, mask=MaskKind.BOOL).extended(dropout=0.9))
    for case in judge.cases(*cases) if judge.observes("changed_state") else ():
        _assert_drops_nothing(judge, case, "evaluation mode")
    for case in shown_cases(judge, SHOWN):
        before, evaluating = _dropout_mask(judge, case), judge.problem(case.extended(evaluation=True)).forward_only()
        if before is None or judge.answer(case, evaluating) is None or (again := _dropout_mask(judge, case)) is None:
            continue
        drops = bool(before.all() or not again.all())
        judge.assert_that(case, drops, "nothing is dropped in training after evaluation")


def _assert_drops_nothing(judge: Judge, case: Case, context: str) -> None:
    """The answer is that without dropout, and no generator of random numbers has moved."""
    problem = judge.problem(case)
    try:
        result, changed = judge.observer.changed_state(problem, judge.device, seed=1)
    except CandidateError as error:
        judge.record_error(case, error)
        return
    expected = judge.expected(case, gradients=problem.cotangent is not None)
    judge.compare(case, result, expected, judge.expanded(judge.parts(), problem), context)
    moved = [name for name in changed if name.startswith(RANDOM)]
    judge.assert_that(case, not moved, f"{context}, and the call changed the {', '.join(moved)}")


@clause("dropout.rate-one")
def test_rate_one(judge: Judge) -> None:
    for case in judge.cases(PLAIN.extended(dropout=1.0), replace(PLAIN, mask=MaskKind.BOOL).extended(dropout=1.0)):
        problem = judge.problem(case)
        if judge.conventions.full_dropout is FullDropout.ERROR:
            judge.assert_refuses(case, problem, "dropout with the probability 1")
        elif (result := judge.answer(case, problem)) is not None:
            expected = solve(problem, judge.conventions, np.zeros(judge.solution(case).trace.weights.shape)).parts
            parts = (part for part in judge.expanded(judge.parts(), problem) if part not in RETURNED)
            judge.compare(case, result, expected, parts, "every weight is dropped")
