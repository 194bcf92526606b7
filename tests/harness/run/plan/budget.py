"""The budget of a run: what proves most for its cost is run first, and what does not fit is left out and reported."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.clause_tests import PlannedCheck
from attention_conformance.tests.report.model import Key

COSTS = Path(__file__).with_name("clause_costs.json")
"""Of each clause the tiles of all its calls and of the largest, and the known mistakes that break it."""
UNMEASURED = 300
"""The tiles of a clause whose calls cannot be counted, such as that of the covering array."""
KEPT = 0.1
"""The share of the budget that is kept for the diagnosis at the end."""
LEFT_OUT = "left out: the budget is spent"


class Worth(NamedTuple):
    """What a clause costs in tiles, all its calls and the largest one, and the mistakes that it detects."""

    tiles: int
    largest: int
    defects: frozenset[str]


@cache
def worths() -> Mapping[str, Worth]:
    """By clause, as last measured."""
    stored = json.loads(COSTS.read_text(encoding="utf-8"))
    return {
        c: Worth(tiles or UNMEASURED, largest, frozenset(defects)) for c, (tiles, largest, defects) in stored.items()
    }


def worth(clause: str) -> Worth:
    """That of a clause; a cheap one that detects nothing where it was not measured."""
    return worths().get(clause, Worth(1, 1, frozenset()))


def in_order(planned: Sequence[PlannedCheck]) -> list[PlannedCheck]:
    """Each dtype after the wider ones; within it the greedy cover of known mistakes, by new ones for a tile."""
    widest_first = sorted({check.dtype for check in planned}, key=list(DTYPES).index)
    ordered: list[PlannedCheck] = []
    for dtype in widest_first:
        left = [check for check in planned if check.dtype == dtype]
        missing = set[str]().union(*(worth(check.clause.id).defects for check in left))
        while left:
            best = max(left, key=lambda check: _gain(check.clause.id, missing))
            missing -= worth(best.clause.id).defects
            left.remove(best)
            ordered.append(best)
    return ordered


def _gain(clause: str, missing: set[str]) -> tuple[float, float]:
    """New mistakes for a tile; among those without any, the cheapest."""
    tiles, _, defects = worth(clause)
    return len(missing & defects) / tiles, 1.0 / tiles


@dataclass
class Budget:
    """Seconds from the start of a run, and how long what has run took.

    Attributes:
        since: when the run began.
        clock: gives seconds.
        tiles: of the clauses that were run, in `seconds`.
    """

    limit: float
    since: float
    clock: Callable[[], float] = time.monotonic
    tiles: int = 0
    seconds: float = 0.0

    @property
    def until(self) -> float:
        """When the last call begins."""
        return self.since + (1.0 - KEPT) * self.limit

    def fits(self, clause: str) -> bool:
        """Whether its largest call ends in time, if it takes as long for a tile as those before it."""
        expected = self.seconds / self.tiles * worth(clause).largest if self.tiles else 0.0
        return self.clock() + expected <= self.until

    def spent(self, clause: str, seconds: float) -> None:
        """Counts a clause that was run."""
        self.tiles += worth(clause).tiles
        self.seconds += seconds


def left_out(planned: Iterable[PlannedCheck], done: Iterable[Key], limit: float) -> str:
    """Why a run with a budget is not complete: what was left out, and what the rest detects; empty if it is."""
    keys = [(check.implementation.name, check.clause.id, check.dtype) for check in planned]
    ran = set(done)
    missing = list(dict.fromkeys(clause for name, clause, dtype in keys if (name, clause, dtype) not in ran))
    if not missing:
        return ""
    checked = {clause for _, clause, _ in ran}
    never = [clause for clause in missing if clause not in checked]
    all_known, known = (
        {d for c in part for d in worth(c).defects} for part in (dict.fromkeys(k[1] for k in keys), checked)
    )
    count = sum(key in ran for key in keys)
    rest = _named(never) or f"some dtypes of {_named(missing)}"
    return (
        f"the budget of {limit:g} s is spent after {count} of {len(keys)} checks, which detect "
        f"{len(known & all_known)} of {len(all_known)} known mistakes; left out: {rest}"
    )


def _named(clauses: Sequence[str]) -> str:
    """Chapters with the number of their clauses, the most first."""
    chapters: dict[str, int] = {}
    for clause in clauses:
        chapter = clause.partition(".")[0]
        chapters[chapter] = chapters.get(chapter, 0) + 1
    return ", ".join(f"{count} of {chapter}" for chapter, count in sorted(chapters.items(), key=lambda item: -item[1]))
