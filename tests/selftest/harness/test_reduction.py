"""Reduction: the smallest case fails the same part in the same way, in little time."""

import re
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
from attention_conformance.tests.harness.explain.reduction import (
    MOST_NUMBERS,
    Counterexample,
    Recipe,
    fits,
    lines,
    outcome,
    reduce,
)
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
    "slopes-of-the-first-sample-for-all": Sizes(2, 1, 1, 2, 1, 1),
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
    counterexample = reduce(judge, case, part, SECONDS)
    assert counterexample is not None
    return counterexample


@pytest.mark.parametrize("name", SMALLEST)
def test_defects_are_reduced(name: str) -> None:
    judge, failure = failure_of(name)
    case = Case.from_json(failure.case)
    before = outcome(judge, Recipe(case).problem(judge, failure.part), failure.part)
    counterexample = reduced(judge, case, failure.part)
    assert counterexample.recipe.case.sizes == SMALLEST[name]
    assert counterexample.outcome.fails_like(before)
    assert counterexample.outcome.part == failure.part
    again = outcome(judge, counterexample.recipe.problem(judge, failure.part), failure.part)
    assert again.comparison == counterexample.outcome.comparison


@pytest.mark.parametrize("name", GRADIENTS)
def test_one_element_of_the_cotangent_is_enough(name: str) -> None:
    judge, failure = failure_of(name)
    cotangent = reduced(judge, Case.from_json(failure.case), failure.part).outcome.problem.cotangent
    assert cotangent is not None
    assert np.count_nonzero(cotangent) == 1


def test_what_holds_is_not_reduced() -> None:
    assert reduce(Judge(MATH, "float64"), Case(), "output", SECONDS) is None


def refusing_few_keys(problem: Problem, output: Array) -> Array:
    if problem.key.shape[-2] < 3:
        raise ValueError("too short")
    return output * 2.0


def raising_two_types(problem: Problem, output: Array) -> Array:
    raise ValueError("long") if problem.key.shape[-2] > 3 else TypeError("short")


def nan_in_three_heads(problem: Problem, output: Array) -> Array:
    return np.full_like(output, np.nan) if problem.query.shape[1] == 3 else output + 1.0


@pytest.mark.parametrize(
    ("change", "case", "kind", "sizes", "message"),
    [
        (refusing_few_keys, Case(), FailureKind.VALUE, Sizes(1, 1, 1, 3, 1, 1), "output of .*"),
        (
            raising_two_types,
            Case(causal=True),
            FailureKind.RAISED,
            Sizes(1, 1, 1, 4, 1, 1),
            "raised ValueError: long",
        ),
        (nan_in_three_heads, Case(), FailureKind.NAN, Sizes(1, 3, 1, 1, 1, 1), "output of .*"),
    ],
)
def test_a_failure_keeps_its_kind(
    change: Callable[[Problem, Array], Array], case: Case, kind: FailureKind, sizes: Sizes, message: str
) -> None:
    counterexample = reduced(answering(change), case)
    assert counterexample.outcome.comparison.kind is kind
    assert counterexample.recipe.case.sizes == sizes
    assert re.fullmatch(message, counterexample.outcome.comparison.message)


def test_no_row_loses_its_keys() -> None:
    judge, failure = failure_of("padding-instead-of-mask")
    problem = reduced(judge, Case.from_json(failure.case), failure.part).outcome.problem
    assert allowed_keys(problem, judge.conventions).any(-1).all()


def test_numbers_are_short_and_none_is_rounded_away() -> None:
    counterexample = reduced(answering(lambda problem, output: output * 2.0), Case(mask=MaskKind.BOOL, causal=False))
    assert counterexample.recipe.decimals is not None
    problem = counterexample.outcome.problem
    for array in (problem.query, problem.key, problem.value):
        assert (array != 0.0).all()
        assert (array == np.round(array, counterexample.recipe.decimals)).all()


def test_time_is_kept() -> None:
    def change(problem: Problem, output: Array) -> Array:
        time.sleep(0.05)
        return output + float(problem.query.size > 60)

    start = time.perf_counter()
    counterexample = reduce(answering(change), Case(mask=MaskKind.BOOL), "output", 0.3)
    assert time.perf_counter() - start < 1.0
    assert counterexample is not None
    assert counterexample.calls < 10


def test_small_problems_are_shown_in_numbers() -> None:
    counterexample = reduced(answering(lambda problem, output: output * 2.0), Case())
    text = list(lines(counterexample))
    assert text[0] == f"smallest failing case: {counterexample.recipe.case}"
    assert [line.split()[0] for line in text[1:-1]] == ["q", "k", "v", "expected", "got"]
    assert text[-1].strip() == counterexample.outcome.comparison.message
    expected, got = (float(line.rpartition("= ")[2].strip("[]")) for line in text[-3:-1])
    assert got == pytest.approx(2.0 * expected)


def test_large_problems_are_shown_by_seed_and_worst_element() -> None:
    judge = answering(lambda problem, output: output * (2.0 if problem.key.shape[-2] > 40 else 1.0))
    counterexample = reduced(judge, Case(seed=5).sized(key_length=64))
    assert not fits(counterexample.outcome)
    text = list(lines(counterexample))
    assert f"seed {counterexample.recipe.case.seed}, " in text[1]
    assert " x the bound " in text[-1]
    assert len(text) == 3
    assert sum(a.size for a in counterexample.outcome.problem.arrays().values()) > MOST_NUMBERS


def test_the_part_is_noted_where_the_reference_was_compared() -> None:
    judge = answering(lambda problem, output: output * 2.0)
    judge.assert_conforms(Case())
    judge.assert_that(Case(), False, "not so")
    assert [failure.part for failure in judge.tally.failures] == ["output", ""]


def test_an_exception_is_noted_with_the_part_that_needs_most() -> None:
    def broken(problem: Problem, device: str) -> Result:
        raise ValueError("no")

    judge = Judge(replace(MATH, name="broken", run=broken), "float64")
    judge.assert_conforms(Case(), "output", "gradients")
    assert [failure.part for failure in judge.tally.failures] == ["gradients.query"]
