"""Verdicts: the result of one clause, implementation and dtype. Impossible records cannot be built."""

import math
from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """The outcome of a clause; the list is closed."""

    PASS = "pass"
    """Every check held, and there was at least one."""
    FAIL = "fail"
    """At least one check did not hold."""
    NOT_CLAIMED = "not claimed"
    """A feature of the clause is not claimed, or the implementation supports no case of it."""
    NOT_PROVABLE = "not provable"
    """Every comparison holds, with a bound so wide in this half type that zeros would pass as well: nothing follows."""
    EXPECTED_FAILURE = "expected failure"
    """It failed, as a public report states."""
    NOT_FINISHED = "not finished"
    """The candidate's process was lost too often before this clause."""
    ERROR = "error"
    """The suite could not judge: no check that counts, or an expected failure that passed."""


REASONED = (Status.NOT_CLAIMED, Status.NOT_PROVABLE, Status.EXPECTED_FAILURE, Status.NOT_FINISHED, Status.ERROR)
"""Outcomes that need a reason in words."""


class FailureKind(StrEnum):
    """How a check failed; the list is closed."""

    VALUE = "value"
    """A number differs from the expected one by more than its bound."""
    NAN = "NaN"
    """A number is NaN where another one is expected, or the other way round."""
    INFINITE = "infinite"
    """A number is infinite where another one is expected, or the other way round."""
    SHAPE = "shape"
    DTYPE = "dtype"
    MISSING = "missing"
    """A claimed part was not returned."""
    RAISED = "raised"
    """The candidate raised an exception."""
    DIED = "died"
    """The candidate's process ended."""
    TIMED_OUT = "timed out"
    """The candidate gave no answer before its deadline."""
    OUT_OF_MEMORY = "out of memory"
    """The candidate needed more memory than it may take."""
    WRONG_TYPE = "wrong type"
    """The candidate returned something other than arrays of real numbers."""
    ACCEPTED = "accepted"
    """The candidate accepted a problem that makes no sense."""
    STATE = "state"
    """The call changed its inputs, the state of the process, or the answers of other calls."""
    PROPERTY = "property"
    """Another property of the answers does not hold."""


LOSSES = (FailureKind.DIED, FailureKind.TIMED_OUT, FailureKind.OUT_OF_MEMORY)
"""Failures that cost the candidate's process: of its own doing, or as it is ended."""


@dataclass(frozen=True)
class Failure:
    """The failure on the case that shows it most plainly.

    Attributes:
        part: what differed from the reference's answer to the case, such as `output` or `gradients.key`; empty for
            other checks.
        summary: the mistake in words without numbers, where the check has such words.
        place: the line of the candidate's code that raised, as FILE:LINE.
    """

    message: str
    case: str
    dtype: str
    part: str = ""
    kind: FailureKind = FailureKind.PROPERTY
    summary: str = ""
    place: str = ""

    def __post_init__(self) -> None:
        if not self.message:
            raise ValueError("a failure needs a message")


@dataclass(frozen=True)
class Verdict:
    """The verdict on one clause, for one implementation in one dtype.

    Attributes:
        checks: comparisons that were made and could have failed.
        inconclusive: comparisons whose bound was too wide to prove anything; they are not counted in `checks`.
        failed: how many of the checks did not hold.
        worst: the largest error in units of its bound; None where nothing was compared by a bound.
        rms: the root mean square of the errors of its outputs, each relative to the root mean square of what is
            expected, in unit roundoffs of the dtype; None where no finite output was compared by a bound.
        reason: why it is not claimed, not provable, an expected failure or an error.
        link: the public report of an expected failure.
        left_out: why a case decided nothing that the claims allow: the candidate needs more memory than it may take.
    """

    clause: str
    level: str
    implementation: str
    dtype: str
    status: Status
    checks: int = 0
    inconclusive: int = 0
    failed: int = 0
    worst: float | None = None
    rms: float | None = None
    seconds: float = 0.0
    failure: Failure | None = None
    reason: str = ""
    link: str = ""
    left_out: str = ""

    def __post_init__(self) -> None:
        if problem := _contradiction(self):
            raise ValueError(f"{self.clause} of {self.implementation}: {problem}")

    @property
    def message(self) -> str:
        """The message of the failure, or without one the reason."""
        return self.reason if self.failure is None else self.failure.message


def _contradiction(verdict: Verdict) -> str:
    status, failed = verdict.status, verdict.failed
    fails = status in (Status.FAIL, Status.EXPECTED_FAILURE)
    broken = {
        "counts cannot be negative": min(verdict.checks, verdict.inconclusive, failed) < 0,
        "no more checks can fail than were made": failed > verdict.checks,
        "errors and times are finite": not math.isfinite((verdict.worst or 0.0) + verdict.seconds),
        "rms is finite and not negative": not 0.0 <= (verdict.rms or 0.0) < math.inf,
        "a pass needs checks, and none of them failed": status is Status.PASS and (verdict.checks == 0 or failed > 0),
        "a failure needs a failed check and its message": fails and (failed == 0 or verdict.failure is None),
        "only a failure has one to show": not fails and verdict.failure is not None,
        f"{status} and a reason go together": (status in REASONED) != bool(verdict.reason),
        "an expected failure and a link go together": (status is Status.EXPECTED_FAILURE) != bool(verdict.link),
        "a clause that is not claimed is not checked": status is Status.NOT_CLAIMED and verdict.checks > 0,
        "a clause is not provable by comparisons that do not count": status is Status.NOT_PROVABLE
        and (verdict.checks > 0 or verdict.inconclusive == 0),
    }
    return next((rule for rule, is_broken in broken.items() if is_broken), "")
