"""Sharding: one part of a run, so that all parts take about as long. `report-merge` makes one report of theirs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import TypeAlias

Group: TypeAlias = tuple[str, str]
"""Clause and implementation: their dtypes stay together, as the reference solves each case for all of them."""
SECONDS = Path(__file__).with_name("clause_seconds.json")
"""What a check of each clause takes on average over built-in implementations; `make clause-seconds` measures it."""


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
