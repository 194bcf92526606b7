"""Tiers: how much a run checks."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tier:
    """How much is checked: `examples` of random search, the strength of the covering array, long sequences."""

    name: str
    strength: int
    examples: int
    long: bool


TIERS = {
    "quick": Tier("quick", strength=2, examples=0, long=False),
    "full": Tier("full", strength=2, examples=200, long=False),
    "exhaustive": Tier("exhaustive", strength=3, examples=1000, long=True),
}
