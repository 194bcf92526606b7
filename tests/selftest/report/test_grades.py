"""Grades: medians over what passes, and the letters for them."""

from functools import partial
from typing import Any

import pytest

from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.reference.expected import solve
from attention_conformance.spec.clauses import load
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import DTYPES, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause_tests
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.judging import judged
from attention_conformance.tests.report.grades import Grade, grade
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.selftest.report.test_verdicts import FAILURE


def passed(rms: float | None, dtype: str = "float32", **changes: Any) -> Verdict:
    fields: dict[str, Any] = {"status": Status.PASS, "checks": 2, **changes}
    return Verdict("masks.bool", "MUST", "some.op", dtype, rms=rms, **fields)


@pytest.mark.parametrize(
    ("rms", "letter"),
    [(0.0, "A"), (0.99, "A"), (1.0, "B"), (3.99, "B"), (4.0, "C"), (15.9, "C"), (16.0, "D"), (1e9, "D")],
)
def test_letters(rms: float, letter: str) -> None:
    assert Grade(rms).letter == letter


def test_the_median_of_what_passes() -> None:
    failed = passed(100.0, status=Status.FAIL, failed=1, failure=FAILURE)
    grades = grade([passed(3.0), passed(1e9), passed(2.0), passed(None), failed, passed(0.5, "float16")])
    assert grades == {"float32": Grade(3.0), "float16": Grade(0.5)}


def test_without_errors_there_is_no_grade() -> None:
    assert grade([]) == grade([passed(None)]) == {}


def rounded(problem: Problem, device: str, factor: float = 1.0) -> Result:
    exact = solve(problem).parts["output"].value
    return Result(output=(factor * exact).astype(DTYPES[problem.dtype]))


def test_a_rounded_exact_answer_is_an_a_and_errors_of_six_roundoffs_are_a_c() -> None:
    claims, clause = Claims(Scope.OP, frozenset({Feature.CORE})), load()["scores.dot-product"]
    for run, letter in ((rounded, "A"), (partial(rounded, factor=1.0 + 6.0 * 2.0**-24), "C")):
        verdict = judged(clause, clause_tests()[clause.id], Judge(Implementation("some.op", claims, run), "float32"))
        assert grade([verdict])["float32"].letter == letter
