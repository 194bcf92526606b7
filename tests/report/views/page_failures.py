"""The clauses that do not hold, and how much of each the page shows: with all of all, it would be too large."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from attention_conformance.tests.report.counts import BROKEN, ORDER, ClauseCount, Outcome, Row, outcome
from attention_conformance.tests.report.model import FailureRecord, Run, key_of
from attention_conformance.tests.report.verdict import Verdict
from attention_conformance.tests.report.views.pictures import Part, parts
from attention_conformance.tests.report.wording import FailureText, failure_text

DRAWN, DESCRIBED = 48, 120
"""Clauses of a page whose numbers are drawn, and whose message is shown in every dtype.

Each implementation gets the same part of them, and at least one; clauses that fail a MUST come first.
"""


class Depth(IntEnum):
    """How much a page shows of a failure."""

    NAMED = 0
    """Clause and dtype."""
    DESCRIBED = 1
    """Its message, case and commands."""
    DRAWN = 2
    """All of that, and its numbers."""


@dataclass(frozen=True)
class FailingDtype:
    """A clause that does not hold in one dtype.

    Attributes:
        record: the log's record of its smallest case; None without one.
        reduced: whether that case is smaller than the one that was judged.
        drawn: its pictures; empty if it is not drawn, or has no numbers.
    """

    verdict: Verdict
    depth: Depth
    text: FailureText
    record: FailureRecord | None
    reduced: bool
    drawn: tuple[Part, ...]


@dataclass(frozen=True)
class FailingClause:
    """A clause that does not hold, in all dtypes. `whole`: whether it is shown with its equation."""

    count: ClauseCount
    dtypes: tuple[FailingDtype, ...]
    whole: bool


def failing_clauses(run: Run, matrix: Sequence[Row]) -> Mapping[str, Mapping[str, FailingClause]]:
    """The clauses that do not hold, by implementation and clause, in the order of the matrix."""
    broken = {row.subject.name: [c for c in row.total.clauses if c.outcome in BROKEN] for row in matrix}
    drawn = _portion(DRAWN, len({name for name, _, _ in run.explained}))
    described = _portion(DESCRIBED, sum(map(bool, broken.values())))
    return {name: dict(_of_subject(run, clauses, drawn, described)) for name, clauses in broken.items()}


def _portion(number: int, among: int) -> int:
    return max(1, number // among) if among else number


def _of_subject(
    run: Run, clauses: Sequence[ClauseCount], drawn: int, described: int
) -> Iterator[tuple[str, FailingClause]]:
    ranked = sorted(clauses, key=lambda each: ORDER.index(each.outcome))
    for each in clauses:
        rank = ranked.index(each)
        depth = Depth.DRAWN if rank < drawn else Depth.DESCRIBED if rank < described else Depth.NAMED
        whole = depth is Depth.DRAWN and (each.outcome is not Outcome.KNOWN or not run.explained)
        yield each.clause, FailingClause(each, tuple(_failing(run, each, depth)), whole)


def _failing(run: Run, clause: ClauseCount, depth: Depth) -> Iterator[FailingDtype]:
    """Numbers are drawn in the first dtype that has some: the others show the same mistake.

    A known deviation is described in its first dtype only.
    """
    for verdict in clause.verdicts:
        if outcome(verdict) in BROKEN:
            record = run.explained.get(key_of(verdict))
            drawn = tuple(parts(record)) if record is not None and depth is Depth.DRAWN else ()
            own = Depth.DRAWN if drawn else min(depth, Depth.DESCRIBED)
            depth = Depth.NAMED if clause.outcome is Outcome.KNOWN else Depth.DESCRIBED if drawn else depth
            text = failure_text(run, verdict) if verdict.failure else FailureText(verdict.reason, "", "", "")
            yield FailingDtype(verdict, own, text, record, record is not None and not record.unreduced_reason, drawn)
