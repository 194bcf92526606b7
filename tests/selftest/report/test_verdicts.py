"""Verdicts: records that contradict themselves cannot be built, and what is built survives its JSON."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
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
from attention_conformance.tests.report.log import decode, encode
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
    line = encode(verdict)
    assert decode(line) == verdict
    assert json.loads(line)["status"] == str(verdict.status)


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
    raise AssertionError("nothing is run here")


def _judge(*entries: ExpectedFailure, dtype: str = "float32") -> Judge:
    claims = Claims(Scope.OP, frozenset({Feature.CORE}))
    return Judge(Implementation("some.op", claims, _never, expected_failures=entries), dtype)


def _verdict(judge: Judge) -> Verdict:
    return verdict(load()["scores.dot-product"], judge, 1.0)


KNOWN = ExpectedFailure("scores.dot-product", "it is known", LINK, ("float32",))
OF_ANOTHER_DTYPE = ExpectedFailure("scores.dot-product", "it is known", LINK, ("float16",))


def test_a_failed_check_fails_the_clause() -> None:
    judge = _judge(OF_ANOTHER_DTYPE)
    judge.record(Case(), Comparison(0.5))
    judge.record(Case(), Comparison(3.0, "wrong", kind=FailureKind.VALUE), context="context")
    own = _verdict(judge)
    assert (own.status, own.checks, own.failed, own.worst) == (Status.FAIL, 2, 1, 3.0)
    assert own.failure == Failure("context: wrong", Case().to_json(), "float32", "", FailureKind.VALUE, "context")


def test_errors_of_outputs_are_counted_in_unit_roundoffs() -> None:
    judge = _judge()
    u = unit_roundoff("float32")
    assert _verdict(judge).rms is None
    judge.record(Case(), Comparison(0.5, relative=3.0 * u))
    judge.record(Case(), Comparison(0.5))
    judge.record(Case(), Comparison(0.5, inconclusive=True, relative=100.0 * u))
    judge.record(Case(), Comparison(0.5, relative=4.0 * u))
    assert _verdict(judge).rms == 12.5**0.5


def test_a_copy_of_a_judge_counts_in_the_same_record() -> None:
    judge = _judge()
    replace(judge, dtype="float64").assert_that(Case(), False, "of the copy")
    replace(judge, dtype="float64").unsupported.append("no case")
    judge.assert_that(Case(), True, "")
    assert (judge.tally.checks, judge.tally.failed, judge.unsupported) == (2, 1, ["no case"])


def test_errors_that_are_not_finite_have_no_number() -> None:
    judge = _judge()
    judge.record(Case(), Comparison(1e300, "wrong", relative=1e300, kind=FailureKind.VALUE))
    assert _verdict(judge).rms is None
    judge.assert_that(Case(), False, "NaN")
    assert _verdict(judge).worst is None


def test_the_plainest_failure_is_shown() -> None:
    judge = _judge()
    judge.assert_that(Case(causal=True), False, "second")
    judge.assert_that(Case(), False, "first")
    failure = _verdict(judge).failure
    assert failure is not None
    assert failure.message == "first"


WRONG = Comparison(np.inf, "wrong", kind=FailureKind.PROPERTY)
TOO_WIDE = Comparison(0.5, inconclusive=True)
OPEN = Comparison(0.0, inconclusive=True, unspecified=True)


@pytest.mark.parametrize(
    ("judge", "outcome", "status", "reason"),
    [
        (_judge(KNOWN), WRONG, Status.EXPECTED_FAILURE, "it is known"),
        (_judge(KNOWN), Comparison(0.0), Status.ERROR, "passes, but is expected to fail (it is known): remove the"),
        (_judge(), None, Status.ERROR, "nothing was checked"),
        (_judge(), TOO_WIDE, Status.ERROR, "too wide"),
        (_judge(), OPEN, Status.NOT_CLAIMED, "leaves every answer open"),
        (_judge(dtype="float16"), TOO_WIDE, Status.NOT_PROVABLE, "every bound in float16 is too wide"),
    ],
)
def test_outcomes_that_need_a_reason(judge: Judge, outcome: Comparison | None, status: Status, reason: str) -> None:
    for comparison in [] if outcome is None else [outcome]:
        judge.record(Case(), comparison)
    own = _verdict(judge)
    assert own.status is status
    assert reason in own.reason
    assert own.link == (LINK if status is Status.EXPECTED_FAILURE else "")
    counted = outcome is not None and not outcome.inconclusive
    assert (own.checks, own.inconclusive) == (int(counted), int(outcome is TOO_WIDE))


def test_mixed_precision_is_as_coarse_as_its_half_type() -> None:
    judge = _judge()
    judge.record(Case(), TOO_WIDE)
    own = verdict(load()["modules.autocast"], judge, 1.0)
    assert (own.status, own.reason) == (Status.NOT_PROVABLE, "every bound in bfloat16 is too wide to prove anything")


def test_a_clause_without_a_case_that_fits_is_not_claimed() -> None:
    judge = _judge()
    assert list(judge.cases(Case(causal=True))) == []
    own = _verdict(judge)
    assert (own.status, own.reason) == (Status.NOT_CLAIMED, "does not claim causal")
