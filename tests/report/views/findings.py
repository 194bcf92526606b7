"""Findings: the clauses that do not hold, and how much of each a page shows: of all, a page would be too large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from attention_conformance.tests.report.model import Run, Shown
from attention_conformance.tests.report.text import Told, told
from attention_conformance.tests.report.verdict import Verdict
from attention_conformance.tests.report.views.matrix import BROKEN, ORDER, Kind, Line, Row, kind_of
from attention_conformance.tests.report.views.pictures import Part, parts

Explanations: TypeAlias = Mapping[tuple[str, str, str], Shown]
"""By implementation, clause and dtype."""

DRAWN, TOLD = 48, 120
"""Clauses of a page of which the numbers are drawn, and of which the message is shown in every dtype.

Each implementation has the same share of them, and one at least; what fails a MUST comes first.
"""


class Depth(IntEnum):
    """How much a page shows of a failure."""

    NAMED = 0
    """That it is there."""
    TOLD = 1
    """Its message, case and commands."""
    DRAWN = 2
    """All of that, and its numbers."""


@dataclass(frozen=True)
class Failing:
    """A clause that does not hold in one dtype.

    Attributes:
        shown: what the log has of its smallest case; None if it has nothing.
        reduced: whether that case is smaller than the one that was judged.
        drawn: its pictures; empty where it is not drawn, or none can be made.
    """

    verdict: Verdict
    depth: Depth
    told: Told
    shown: Shown | None
    reduced: bool
    drawn: tuple[Part, ...]


@dataclass(frozen=True)
class Finding:
    """A clause that does not hold, in all dtypes.

    Attributes:
        whole: whether the clause is shown with its equation; what is known gives way to what fails.
    """

    row: Row
    failing: tuple[Failing, ...]
    whole: bool


def findings(run: Run, matrix: Sequence[Line]) -> Mapping[str, Mapping[str, Finding]]:
    """What does not hold, by implementation and clause, in the order of the matrix."""
    explained: dict[tuple[str, str, str], Shown] = {}
    for one in run.shown:
        explained.setdefault((one.implementation, one.clause, one.dtype), one)
    found = {line.subject.name: [row for row in line.rows if row.kind in BROKEN] for line in matrix}
    drawn = _share(DRAWN, len({name for name, _, _ in explained}))
    telling = _share(TOLD, sum(bool(rows) for rows in found.values()))
    return {name: dict(_of_one(run, rows, explained, drawn, telling)) for name, rows in found.items()}


def _share(number: int, among: int) -> int:
    return max(1, number // among) if among else number


def _of_one(
    run: Run, rows: Sequence[Row], explained: Explanations, drawn: int, telling: int
) -> Iterator[tuple[str, Finding]]:
    ranked = sorted(range(len(rows)), key=lambda number: ORDER.index(rows[number].kind))
    for number, row in enumerate(rows):
        rank = ranked.index(number)
        depth = Depth.DRAWN if rank < drawn else Depth.TOLD if rank < telling else Depth.NAMED
        whole = depth is Depth.DRAWN and (row.kind is not Kind.KNOWN or not explained)
        yield row.clause, Finding(row, tuple(_failing(run, row, explained, depth)), whole)


def _failing(run: Run, row: Row, explained: Explanations, depth: Depth) -> Iterator[Failing]:
    """Of one dtype, the first that can be, numbers are drawn: the others show the same mistake.

    What is known is told in its first dtype only.
    """
    for verdict in row.verdicts:
        if kind_of(verdict) in BROKEN:
            shown = explained.get((verdict.implementation, verdict.clause, verdict.dtype))
            drawn = tuple(parts(shown)) if shown is not None and depth is Depth.DRAWN else ()
            mine = Depth.DRAWN if drawn else min(depth, Depth.TOLD)
            depth = Depth.NAMED if row.kind is Kind.KNOWN else Depth.TOLD if drawn else depth
            in_words = told(run, verdict) if verdict.failure else Told(verdict.reason, "", "", "")
            yield Failing(verdict, mine, in_words, shown, shown is not None and not shown.without, drawn)
