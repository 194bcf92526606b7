"""The exit statuses of a run, of `pytest` in a clone and of the installed command alike."""

from collections.abc import Sequence
from enum import IntEnum

from attention_conformance.tests.report.verdict import Status, Verdict

HARMLESS = (Status.PASS, Status.NOT_CLAIMED, Status.NOT_PROVABLE, Status.EXPECTED_FAILURE)
"""Outcomes of clauses that let a run succeed."""


class ExitStatus(IntEnum):
    """What a run ends with; the list is closed."""

    CONFORMS = 0
    """Every MUST of what is claimed holds, and the run is complete."""
    FAILS = 1
    """A MUST does not hold, an expected failure passes, or a claimed feature was not checked."""
    INTERRUPTED = 2
    """The run was interrupted, or is not complete for another reason."""
    SUITE_ERROR = 3
    """The suite itself failed: the last line has what to report."""
    UNUSABLE = 4
    """A target or an option cannot be used; one line has the reason."""
    NOTHING_CHECKED = 5
    """Nothing was checked, because nothing that was selected is claimed or supported."""
    IN_PART = 6
    """As for 0, but an interface names what could not be judged, such as a mask: `--without NAME` leaves that out."""


def exit_status(
    from_pytest: int,
    crashed: bool,
    verdicts: Sequence[Verdict],
    planned: int,
    unchecked: bool,
    findings: bool = False,
) -> int:
    """The status of a run of clauses.

    Args:
        from_pytest: its own status; its numbers mean the same, except that a crash within a test is 1 there.
        crashed: whether the code of the suite raised an exception.
        verdicts: those of the run.
        planned: how many verdicts a complete run has.
        unchecked: whether a claimed feature was not checked.
        findings: whether an interface names what is not judged.
    """
    if crashed:
        return ExitStatus.SUITE_ERROR
    failing = any(v.status not in HARMLESS for v in verdicts)
    lacking = len(verdicts) < planned and not failing
    if from_pytest != ExitStatus.CONFORMS and not (lacking and from_pytest == ExitStatus.FAILS):
        return from_pytest
    if len(verdicts) < planned:
        return ExitStatus.INTERRUPTED
    if not any(v.checks or v.status is Status.ERROR for v in verdicts):
        return ExitStatus.NOTHING_CHECKED
    if unchecked:
        return ExitStatus.FAILS
    return ExitStatus.IN_PART if findings else ExitStatus.CONFORMS
