"""Reduction: the smallest case fails the same part in the same way, and is found in little time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS
from attention_conformance.implementations.defects import catalogue
from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Case, MaskKind, Sizes
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.explain.counterexample import MOST_NUMBERS, fits, lines
from attention_conformance.tests.harness.explain.reduction import Counterexample, Recipe, outcome, reduce
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Failure, FailureKind, Status

MATH = next(i for i in TORCH_OPS if i.name == "torch.sdpa.math")
SECONDS = 5.0
SMALLEST = {
    "next-position-seen": Sizes(1, 1, 2, 2, 1, 1),
    "mask-inverted": Sizes(1, 1, 1, 1, 1, 1),
    "triangle-from-the-other-corner": Sizes(1, 1, 1, 2, 1, 1),
    "scale-after-softmax": Sizes(1, 1, 1, 1, 2, 1),
    "weights-before-masks": Sizes(1, 1, 1, 2, 1, 1),
    "mask-of-the-first-sample": Sizes(2, 1, 1, 2, 1, 1),
    "empty-row-is-nan": Sizes(1, 1, 1, 1, 1, 1),
    "no-maximum": Sizes(1, 1, 1, 1, 1, 1),
    "output-as-wide-as-a-key": Sizes(1, 1, 1, 1, 2, 1),
    "nothing-is-no-shape": Sizes(0, 1, 1, 1, 1, 1),
    "float-mask-dropped-over-many-keys": Sizes(1, 1, 1, 257, 1, 1),
    "key-gradient-without-scale": Sizes(1, 1, 1, 2, 2, 1),
    "mask-gradient-scaled": Sizes(1, 1, 1, 2, 1, 1),
    "query-and-key-exchanged": Sizes(1, 1, 1, 2, 1, 1),
    "output-matrix-transposed": Sizes(1, 2, 1, 1, 1, 1),
}
GRADIENTS = ("key-gradient-without-scale", "mask-gradient-scaled")


def answering(change: Callable[[Problem, Array], Array]) -> Judge:
    """A judge of torch's own answer, changed."""

    def run(problem: Problem, device: str) -> Result:
        result = MATH.run(problem, device)
        return replace(result, output=change(problem, result.output))

    return Judge(replace(MATH, name="changed", run=run), "float64")


def failure_of(name: str) -> tuple[Judge, Failure]:
    """The first failure of a defect."""
    defect = next(d for d in catalogue() if d.id == name)
    verdicts = run(defect.implementation, defect.clauses[:1], (defect.dtype,))
    failure = next(v.failure for v in verdicts if v.status is Status.FAIL)
    assert failure is not None
    return Judge(defect.implementation, failure.dtype), failure


def reduced(judge: Judge, case: Case, part: str = "output") -> Counterexample:
    found = reduce(judge, case, part, SECONDS)
    assert found is not None
    return found


@pytest.mark.parametrize("name", SMALLEST)
def test_defects_are_reduced(name: str) -> None:
    judge, failure = failure_of(name)
    case = Case.from_json(failure.case)
    before = outcome(judge, Recipe(case).problem(judge, failure.part), failure.part)
    found = reduced(judge, case, failure.part)
    assert found.recipe.case.sizes == SMALLEST[name]
    assert found.outcome.fails_like(before)
    assert found.outcome.part == failure.part
    again = outcome(judge, found.recipe.problem(judge, failure.part), failure.part)
    assert again.comparison == found.outcome.comparison


@pytest.mark.parametrize("name", GRADIENTS)
def test_one_element_of_the_cotangent_is_enough(name: str) -> None:
    judge, failure = failure_of(name)
    cotangent = reduced(judge, Case.from_json(failure.case), failure.part).outcome.problem.cotangent
    assert cotangent is not None
    assert np.count_nonzero(cotangent) == 1


def test_what_holds_is_not_reduced() -> None:
    assert reduce(Judge(MATH, "float64"), Case(), "output", SECONDS) is None


def test_a_wrong_number_is_not_taken_for_an_exception() -> None:
    def change(problem: Problem, output: Array) -> Array:
        if problem.key.shape[-2] < 3:
            raise ValueError("too short")
        return output * 2.0

    found = reduced(answering(change), Case())
    assert found.outcome.comparison.kind is FailureKind.VALUE
    assert found.recipe.case.sizes == Sizes(1, 1, 1, 3, 1, 1)


def test_an_exception_stays_the_same_exception() -> None:
    def change(problem: Problem, output: Array) -> Array:
        raise ValueError("long") if problem.key.shape[-2] > 3 else TypeError("short")

    found = reduced(answering(change), Case(causal=True))
    assert found.outcome.comparison.kind is FailureKind.RAISED
    assert found.recipe.case.sizes == Sizes(1, 1, 1, 4, 1, 1)
    assert found.outcome.comparison.message == "raised ValueError: long"


def test_nan_stays_nan() -> None:
    def change(problem: Problem, output: Array) -> Array:
        return np.full_like(output, np.nan) if problem.query.shape[1] == 3 else output + 1.0

    found = reduced(answering(change), Case())
    assert found.outcome.comparison.kind is FailureKind.NAN
    assert found.recipe.case.sizes == Sizes(1, 3, 1, 1, 1, 1)


def test_no_row_loses_its_keys() -> None:
    judge, failure = failure_of("padding-instead-of-mask")
    problem = reduced(judge, Case.from_json(failure.case), failure.part).outcome.problem
    assert allowed_keys(problem, judge.conventions).any(-1).all()


def test_numbers_are_short_and_none_is_rounded_away() -> None:
    found = reduced(answering(lambda problem, output: output * 2.0), Case(mask=MaskKind.BOOL, causal=False))
    assert found.recipe.decimals is not None
    problem = found.outcome.problem
    for array in (problem.query, problem.key, problem.value):
        assert (array != 0.0).all()
        assert (array == np.round(array, found.recipe.decimals)).all()


def test_time_is_kept() -> None:
    def change(problem: Problem, output: Array) -> Array:
        time.sleep(0.05)
        return output + float(problem.query.size > 60)

    start = time.perf_counter()
    found = reduce(answering(change), Case(mask=MaskKind.BOOL), "output", 0.3)
    assert time.perf_counter() - start < 1.0
    assert found is not None
    assert found.calls < 10


def test_small_problems_are_told_in_numbers() -> None:
    found = reduced(answering(lambda problem, output: output * 2.0), Case())
    told = list(lines(found))
    assert told[0] == f"smallest failing case: {found.recipe.case}"
    assert [line.split()[0] for line in told[1:-1]] == ["q", "k", "v", "expected", "got"]
    assert told[-1].strip() == found.outcome.comparison.message
    expected, got = (float(line.rpartition("= ")[2].strip("[]")) for line in told[-3:-1])
    assert got == pytest.approx(2.0 * expected)


def test_large_problems_are_told_by_seed_and_worst_element() -> None:
    judge = answering(lambda problem, output: output * (2.0 if problem.key.shape[-2] > 40 else 1.0))
    found = reduced(judge, Case(seed=5).sized(key_length=64))
    assert not fits(found.outcome)
    told = list(lines(found))
    assert f"seed {found.recipe.case.seed}, " in told[1]
    assert " x the bound " in told[-1]
    assert len(told) == 3
    assert sum(a.size for a in found.outcome.problem.arrays().values()) > MOST_NUMBERS


def test_the_part_is_noted_where_the_reference_was_asked() -> None:
    judge = answering(lambda problem, output: output * 2.0)
    judge.assert_conforms(Case())
    judge.assert_that(Case(), False, "not so")
    assert [failure.part for failure in judge.tally.failures] == ["output", ""]


def test_an_exception_is_noted_with_the_part_that_asks_for_most() -> None:
    def broken(problem: Problem, device: str) -> Result:
        raise ValueError("no")

    judge = Judge(replace(MATH, name="broken", run=broken), "float64")
    judge.assert_conforms(Case(), "output", "gradients")
    assert [failure.part for failure in judge.tally.failures] == ["gradients.query"]
