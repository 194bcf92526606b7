"""Latents that attend to other tokens and to themselves, as in Flamingo's resampler: self-attention of halves."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch

from attention_conformance.implementations.discovery.probe import first_part
from attention_conformance.implementations.discovery.vocabulary import words_of

LATENTS = {"latent", "latents"}
"""Words in the names of tokens whose rows are answered."""


@dataclass(frozen=True)
class Latents:
    """How a module takes them.

    Attributes:
        names: the parameters that take them, and all other tokens.
        single: whether it gets one at a time, and not half of all tokens.
    """

    names: tuple[str, str]
    single: bool = False

    def together(self, call: Callable[[torch.Tensor, torch.Tensor], Any], x: torch.Tensor, axis: int) -> torch.Tensor:
        """The rows (B, L, E) of all tokens: some of these as latents next to the others, whose order is no matter."""
        tokens = x.shape[axis]
        count = 1 if self.single else max(1, (tokens + 1) // 2)
        parts = x.split(count, axis)
        others = (torch.cat([*parts[:at], x.narrow(axis, 0, 0), *parts[at + 1 :]], axis) for at in range(len(parts)))
        return torch.cat([first_part(call(part, rest)) for part, rest in zip(parts, others, strict=True)], 1)


def latents_of(names: Collection[str]) -> Latents | None:
    """Those among two inputs of these names."""
    found = [name for name in names if words_of(name) & LATENTS]
    others = [name for name in names if name not in found]
    return Latents((found[0], others[0])) if len(found) == len(others) == 1 else None
