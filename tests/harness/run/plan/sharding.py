"""Sharding: one part of a run, so that all parts take about as long. `report-merge` makes one report of theirs."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import TypeAlias

Group: TypeAlias = tuple[str, str]
"""Clause and implementation: their dtypes stay together, as the reference solves each case for all of them."""
LONG = 0.05
"""A large part of a plan."""
SECONDS = Path(__file__).with_name("clause_seconds.json")
"""What a check of each clause takes on average: of torch's function, or of built-in ones where it does not claim the
clause; `make clause-seconds` measures it."""


@dataclass(frozen=True)
class Shard:
    """Part `number` of `count`, counted from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> Shard:
        """The shard that a text such as "2/4" names.

        Raises:
            ValueError: it names none.
        """
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"{text!r} is no shard: give K/N with K from 1 to N, such as 2/4")
        return cls(int(found[1]), int(found[2]))

    def own(self, groups: Iterable[Group]) -> set[Group]:
        """The groups of this part: each, the longest first, goes to the part that has least to do."""
        loads = [0.0] * self.count
        own = set[Group]()
        for group in sorted(set(groups), key=lambda each: (-seconds(each[0]), each)):
            least = loads.index(min(loads))
            loads[least] += seconds(group[0])
            if least == self.number - 1:
                own.add(group)
        return own


def long_groups(groups: Sequence[Group]) -> dict[Group, float]:
    """Those that take a large part of a plan, given the group of each of its checks, and how long they take."""
    taken: dict[Group, float] = defaultdict(float)
    for group in groups:
        taken[group] += seconds(group[0])
    least = LONG * sum(taken.values())
    return {group: each for group, each in taken.items() if each >= least}


def seconds(clause: str) -> float:
    """What a check of a clause takes, or usually takes where it was not measured."""
    return _measured().get(clause, _usual())


@cache
def _measured() -> dict[str, float]:
    measured: dict[str, float] = json.loads(SECONDS.read_text(encoding="utf-8"))
    return measured


@cache
def _usual() -> float:
    return median(_measured().values())
