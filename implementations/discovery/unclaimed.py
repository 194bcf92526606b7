"""Notes on what a candidate offers and is not claimed, which reports list apart from the other notes."""

from collections.abc import Sequence
from dataclasses import replace

from attention_conformance.implementations.api.contract import Implementation


class Unclaimed(str):
    """A note of this kind, such as "views not claimed: it raises RuntimeError"."""


def unclaimed(what: str, why: str) -> str:
    """The note on what is not claimed, with the reason."""
    return Unclaimed(f"{what} not claimed: {why}")


def with_notes(made: Implementation, notes: Sequence[str]) -> Implementation:
    """The implementation with all notes in one line, and those of this kind apart."""
    return replace(made, about="; ".join(notes), unclaimed=tuple(n for n in notes if isinstance(n, Unclaimed)))
