"""Verdicts: records that contradict themselves cannot be built, and what is built survives its JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from attention_conformance.implementations.api.contract import Claims, ExpectedFailure, Implementation, Result
from attention_conformance.reference.bounds.precision import unit_roundoff
from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import load
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.comparison import Comparison
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.judging import verdict
from attention_conformance.tests.report.verdict import Failure, FailureKind, Status, Verdict

FAILURE = Failure("output of sample 0 is 1, expected 2", Case().to_json(), "float32")
LINK = "https://example.org/issues/1"
WHO: dict[str, Any] = {"clause": "masks.bool", "level": "MUST", "implementation": "some.op", "dtype": "float32"}
GOOD: list[dict[str, Any]] = [
    {"status": Status.PASS, "checks": 3, "inconclusive": 1, "worst": 0.5, "rms": 0.75, "seconds": 0.25},
    {"status": Status.PASS, "checks": 1},
    {"status": Status.FAIL, "checks": 3, "failed": 1, "worst": 7.0, "failure": FAILURE},
    {"status": Status.NOT_CLAIMED, "reason": "does not claim bool-mask"},
    {"status": Status.EXPECTED_FAILURE, "checks": 1, "failed": 1, "failure": FAILURE, "reason": "so", "link": LINK},
    {"status": Status.ERROR, "inconclusive": 2, "reason": "every bound is too wide to prove anything"},
    {"status": Status.ERROR, "checks": 2, "reason": "passes, but is expected to fail"},
]
BAD: list[tuple[str, dict[str, Any]]] = [
    ("a pass needs checks", {"status": Status.PASS}),
    ("a pass needs checks", {"status": Status.PASS, "inconclusive": 5}),
    ("none of them failed", {"status": Status.PASS, "checks": 2, "failed": 1}),
    ("only a failure", {"status": Status.PASS, "checks": 2, "failure": FAILURE}),
    ("a failure needs", {"status": Status.FAIL, "checks": 2, "failed": 1}),
    ("a failure needs", {"status": Status.FAIL, "checks": 2, "failure": FAILURE}),
    ("no more checks", {"status": Status.FAIL, "checks": 1, "failed": 2, "failure": FAILURE}),
    ("reason", {"status": Status.FAIL, "checks": 1, "failed": 1, "failure": FAILURE, "reason": "known"}),
    ("reason", {"status": Status.NOT_CLAIMED}),
    ("is not checked", {"status": Status.NOT_CLAIMED, "reason": "no mask", "checks": 1}),
    ("reason", {"status": Status.ERROR}),
    ("reason", {"status": Status.EXPECTED_FAILURE, "checks": 1, "failed": 1, "failure": FAILURE, "link": LINK}),
    ("link", {"status": Status.EXPECTED_FAILURE, "checks": 1, "failed": 1, "failure": FAILURE, "reason": "so"}),
    ("a failure needs", {"status": Status.EXPECTED_FAILURE, "checks": 1, "reason": "so", "link": LINK}),
    ("link", {"status": Status.PASS, "checks": 1, "link": LINK}),
    ("negative", {"status": Status.PASS, "checks": -1}),
    ("finite", {"status": Status.PASS, "checks": 1, "worst": float("inf")}),
    ("finite", {"status": Status.PASS, "checks": 1, "seconds": float("nan")}),
    ("finite", {"status": Status.PASS, "checks": 1, "rms": float("nan")}),
    ("finite", {"status": Status.PASS, "checks": 1, "rms": float("inf")}),
    ("not negative", {"status": Status.PASS, "checks": 1, "rms": -0.5}),
]


@pytest.mark.parametrize("fields", GOOD)
def test_json_round_trip(fields: dict[str, Any]) -> None:
    verdict = Verdict(**WHO, **fields)
    assert Verdict.from_json(verdict.to_json()) == verdict
    assert json.loads(verdict.to_json())["status"] == str(verdict.status)


@pytest.mark.parametrize(("rule", "fields"), BAD)
def test_contradictions_cannot_be_built(rule: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rule) as caught:
        Verdict(**WHO, **fields)
    assert str(caught.value).startswith("masks.bool of some.op: ")


def test_a_failure_needs_a_message() -> None:
    with pytest.raises(ValueError, match="needs a message"):
        Failure("", Case().to_json(), "float32")


def test_an_expected_failure_needs_a_public_link_and_a_reason() -> None:
    for reason, link in (("so", "http://example.org"), ("so", ""), ("", LINK)):
        with pytest.raises(ValueError, match=r"expected failure of masks\.bool needs"):
            ExpectedFailure("masks.bool", reason, link)


def _never(problem: Problem, device: str) -> Result:
    raise AssertionError("nothing is asked here")


def _judge(*entries: ExpectedFailure, dtype: str = "float32") -> Judge:
    claims = Claims(Scope.OP, frozenset({Feature.CORE}))
    return Judge(Implementation("some.op", claims, _never, expected_failures=entries), dtype)


def _found(judge: Judge) -> Verdict:
    return verdict(load()["scores.dot-product"], judge, 1.0)


KNOWN = ExpectedFailure("scores.dot-product", "it is known", LINK, ("float32",))
OF_ANOTHER_DTYPE = ExpectedFailure("scores.dot-product", "it is known", LINK, ("float16",))


def test_a_failed_check_fails_the_clause() -> None:
    judge = _judge(OF_ANOTHER_DTYPE)
    judge.record(Case(), Comparison(0.5))
    judge.record(Case(), Comparison(3.0, "wrong", kind=FailureKind.VALUE), context="context")
    found = _found(judge)
    assert (found.status, found.checks, found.failed, found.worst) == (Status.FAIL, 2, 1, 3.0)
    assert found.failure == Failure("context: wrong", Case().to_json(), "float32", "", FailureKind.VALUE, "context")


def test_errors_of_outputs_are_counted_in_unit_roundoffs() -> None:
    judge, way = _judge(), _judge()
    u = unit_roundoff("float32")
    assert _found(judge).rms is None
    judge.record(Case(), Comparison(0.5, relative=3.0 * u))
    judge.record(Case(), Comparison(0.5))
    judge.record(Case(), Comparison(0.5, inconclusive=True, relative=100.0 * u))
    way.record(Case(), Comparison(0.5, relative=4.0 * u))
    judge.include(way)
    assert _found(judge).rms == pytest.approx(12.5**0.5)


def test_errors_beyond_all_numbers_have_none() -> None:
    judge = _judge()
    judge.record(Case(), Comparison(1e300, "wrong", relative=1e300, kind=FailureKind.VALUE))
    assert _found(judge).rms is None


def test_an_infinite_error_has_no_number() -> None:
    judge = _judge()
    judge.assert_that(Case(), False, "NaN")
    assert _found(judge).worst is None


def test_the_plainest_failure_is_shown() -> None:
    judge = _judge()
    judge.assert_that(Case(causal=True), False, "second")
    judge.assert_that(Case(), False, "first")
    failure = _found(judge).failure
    assert failure is not None
    assert failure.message == "first"


def test_a_known_failure_is_an_expected_one() -> None:
    judge = _judge(KNOWN)
    judge.assert_that(Case(), False, "wrong")
    found = _found(judge)
    assert (found.status, found.reason, found.link) == (Status.EXPECTED_FAILURE, "it is known", LINK)


def test_an_expected_failure_that_passes_is_an_error() -> None:
    judge = _judge(KNOWN)
    judge.assert_that(Case(), True, "")
    found = _found(judge)
    assert (found.status, found.checks) == (Status.ERROR, 1)
    assert "remove the entry" in found.reason


def test_nothing_checked_is_an_error() -> None:
    assert _found(_judge()).status is Status.ERROR
    judge = _judge()
    judge.record(Case(), Comparison(0.5, inconclusive=True))
    found = _found(judge)
    assert (found.status, found.checks, found.inconclusive) == (Status.ERROR, 0, 1)
    assert "too wide" in found.reason


def test_a_half_type_may_be_too_coarse_for_a_clause() -> None:
    judge = _judge(dtype="float16")
    judge.record(Case(), Comparison(0.5, inconclusive=True))
    found = _found(judge)
    assert (found.status, found.checks) == (Status.NOT_CLAIMED, 0)
    assert "wider dtypes decide" in found.reason


def test_what_cannot_be_asked_is_not_claimed() -> None:
    judge = _judge()
    assert list(judge.cases(Case(causal=True))) == []
    found = _found(judge)
    assert (found.status, found.reason) == (Status.NOT_CLAIMED, "does not claim causal")
