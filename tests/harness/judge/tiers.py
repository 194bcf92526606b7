"""Tiers: how much a run checks, and by which seed its numbers are drawn."""

from dataclasses import dataclass, replace
from secrets import randbelow

from attention_conformance.spec.cases import Case

MOST_SEED = 99_999
STRIDE = 10_000
"""More than the seeds of the stored cases, so that those of two runs are apart; the largest of all fit into 32 bits."""


@dataclass(frozen=True)
class Tier:
    """How much is checked: `examples` of random search, the strength of the covering array, long sequences.

    Attributes:
        seed: that of the numbers and of the search; 0: those that are stored.
    """

    name: str
    strength: int
    examples: int
    long: bool
    seed: int = 0

    @property
    def searches(self) -> bool:
        """Whether it takes its time: cases that repeat in other sizes what the quick tier has once are checked too."""
        return self.examples > 0

    def drawn(self, case: Case) -> Case:
        """The case with the numbers of this seed."""
        return replace(case, seed=case.seed + STRIDE * self.seed) if self.seed else case


TIERS = {
    "quick": Tier("quick", strength=2, examples=0, long=False),
    "full": Tier("full", strength=2, examples=200, long=False),
    "exhaustive": Tier("exhaustive", strength=3, examples=1000, long=True),
}


def seeded(name: str, fresh: bool = False, seed: int | None = None) -> str:
    """What `tier_of` reads: the tier with the given seed, or with a new one where it searches or `fresh` is set."""
    if name not in TIERS or ":" in name:
        return name
    if seed is None:
        seed = 1 + randbelow(MOST_SEED) if fresh or TIERS[name].examples else 0
    return f"{name}:{seed}" if seed else name


def tier_of(text: str) -> Tier:
    """The tier of a text such as quick, or full:7 for the numbers of seed 7.

    Raises:
        ValueError: there is no such tier, or the seed is no number up to `MOST_SEED`.
    """
    name, colon, seed = text.partition(":")
    if name not in TIERS or (colon and not (seed.isascii() and seed.isdecimal() and 0 < int(seed[:9]) <= MOST_SEED)):
        raise ValueError(f"{text!r}; choose from: {', '.join(TIERS)}, each with a seed up to {MOST_SEED}, as in full:7")
    return replace(TIERS[name], seed=int(seed or 0))
