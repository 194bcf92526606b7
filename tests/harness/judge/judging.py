"""Judging: runs one test, and makes the verdict that follows from its checks."""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from attention_conformance.implementations.api.contract import ExpectedFailure, PathError
from attention_conformance.implementations.api.safe_call import LONGEST, CandidateError
from attention_conformance.implementations.worker.remote import loss_of
from attention_conformance.reference.bounds.precision import operands_exact
from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import Clause
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import AUTOCAST, HALF
from attention_conformance.tests.harness.judge.call_time import BudgetSpentError
from attention_conformance.tests.harness.judge.clause_tests import ClauseTest
from attention_conformance.tests.harness.judge.influence import wrong_keys
from attention_conformance.tests.harness.judge.judge import FailureLimitError, Judge
from attention_conformance.tests.report.verdict import Failure, FailureKind, Status, Verdict
from attention_conformance.tests.report.wording import one_line

ENDING_CLAUSE = "effects.global-state"
"""The clause by which a candidate's process ends well after its last call."""


def judged(clause: Clause, test: ClauseTest, judge: Judge) -> Verdict:
    """Runs the test; an exception of the suite itself is not caught.

    Raises:
        BudgetSpentError: the time of the judge was over before all calls of the test, and none failed.
    """
    start = time.perf_counter()
    if lost := loss_of(judge.implementation):
        return not_finished(clause, judge, lost)
    dtypes = tuple(d for d in judge.dtypes if d in test.dtypes)
    left_path = ""
    try:
        test(replace(judge, dtypes_together=dtypes))
        judge.settle()
    except BudgetSpentError:
        judge.settle()
        if not judge.tally.failures:
            raise
    except FailureLimitError:
        pass  # what has failed is counted
    except PathError as error:
        left_path = str(error)
    except CandidateError as error:  # outside of a check, such as in its `fit`
        with suppress(FailureLimitError):
            judge.record_error(Case(), error)
    return verdict(clause, judge, time.perf_counter() - start, left_path)


def assert_ended_well(judge: Judge) -> None:
    """One check: the candidate's process, which gets no more calls, ends by itself, and well."""
    if (how := judge.observer.ended()) is not None:
        judge.assert_that(Case(), not how, "its process after the last call", how, FailureKind.DIED)


def not_finished(clause: Clause, judge: Judge, reason: str) -> Verdict:
    """The verdict on a clause that could not be run, because the candidate's process was lost too often."""
    name, level = judge.implementation.name, str(clause.level_for(judge.claims.dtypes, judge.claims.features))
    return Verdict(clause.id, level, name, judge.dtype, Status.NOT_FINISHED, reason=reason)


def verdict(clause: Clause, judge: Judge, seconds: float, left_path: str = "") -> Verdict:
    """The verdict that follows from the judge's checks, expected failures taken into account.

    `left_path` says why the implementation's answers are not those of the code path that it stands for.
    """
    implementation, tally = judge.implementation, judge.tally
    entries = implementation.expected_failures
    expected = next((entry for entry in entries if entry.shows(clause.id, judge.dtype, judge.device)), None)
    result, reason = (Status.ERROR, left_path) if left_path else status(judge, expected, dtype_of_bounds(clause, judge))
    failed = result in (Status.FAIL, Status.EXPECTED_FAILURE)
    return Verdict(
        clause=clause.id,
        level=str(clause.level_for(judge.claims.dtypes, judge.claims.features)),
        implementation=implementation.name,
        dtype=judge.dtype,
        status=result,
        checks=tally.checks,
        inconclusive=tally.inconclusive,
        failed=tally.failed,
        worst=_finite(tally.worst),
        rms=_finite(tally.rms),
        seconds=round(seconds, 4),
        failure=explained(judge, plainest(tally.failures)) if failed else None,
        reason=one_line(reason, LONGEST),
        link=expected.link if expected is not None and failed else "",
        left_out=one_line(next(iter(judge.counts.left_out), ""), LONGEST),
    )


def explained(judge: Judge, failure: Failure) -> Failure:
    """The failure, with the keys that a query wrongly saw or missed, where they can be detected.

    It takes a call for each key, and is therefore done for the one failure that is shown.
    """
    if not failure.part or failure.summary or failure.kind is FailureKind.WRONG_TYPE:
        return failure
    case = Case.from_json(failure.case)
    context = wrong_keys(judge.problem(case), judge.conventions, judge.run, case.poison)
    return replace(failure, message=f"{context}: {failure.message}") if context else failure


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def dtype_of_bounds(clause: Clause, judge: Judge) -> str:
    """That of the judge, or that of products in mixed precision."""
    return AUTOCAST if Feature.AUTOCAST in clause.features else judge.dtype


def status(judge: Judge, expected: ExpectedFailure | None, dtype: str) -> tuple[Status, str]:
    """The outcome that follows from the checks with the bounds of a dtype, and the reason where one is needed."""
    if judge.tally.checks == 0:
        return _without_checks(judge, dtype)
    if expected is None:
        return (Status.FAIL, "") if judge.tally.failures else (Status.PASS, "")
    if judge.tally.failures:
        return Status.EXPECTED_FAILURE, expected.reason
    return Status.ERROR, f"passes, but is expected to fail ({expected.reason}): remove the entry"


def _without_checks(judge: Judge, dtype: str) -> tuple[Status, str]:
    if judge.tally.inconclusive and (dtype in HALF or not operands_exact(dtype, judge.conventions)):
        return Status.NOT_PROVABLE, f"every bound in {dtype} is too wide to prove anything"
    if judge.tally.inconclusive:
        return Status.ERROR, "every bound is too wide to prove anything"
    if judge.unsupported:
        return Status.NOT_CLAIMED, judge.unsupported[0]
    return Status.ERROR, "the clause is claimed, and nothing was checked"


def plainest(failures: Sequence[Failure]) -> Failure:
    """The failure on the case with the least that is out of the ordinary."""
    return min(failures, key=lambda failure: len(str(Case.from_json(failure.case))))
