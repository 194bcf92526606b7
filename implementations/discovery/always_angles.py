"""What rotates by angles of its own: seen in weights, where no usual base explains them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from attention_conformance.implementations.discovery.probe import HALF, Floats
from attention_conformance.spec.conventions import RotaryPairing

LENGTH = 13
"""Tokens of a sequence, of which each one but the first has a key one place before it."""
USUAL = 10000.0
"""The base of the first model with rotations."""


@dataclass(frozen=True, eq=False)
class Angles:
    """Rotations of a query by its position, as keys by theirs.

    Attributes:
        pairing: which components are rotated together.
        turns: (dim / 2,) the angle of each pair from one position to the next.
        width: of a head.
        factor: by which the scores of what is rotated are larger than usual.
    """

    pairing: RotaryPairing
    turns: Floats
    width: int
    factor: float

    @property
    def dim(self) -> int:
        """How many components are rotated, the first ones."""
        return 2 * len(self.turns)

    @property
    def base(self) -> float | None:
        """The base of which these are the angles, to three digits, if there is one."""
        if self.dim == 2:
            return USUAL if abs(self.turns[0] - 1.0) < HALF else None  # it is the same for each base
        if not 0.0 < self.turns[1] < 1.0:
            return None
        base = float(f"{self.turns[1] ** (-self.dim / 2):.3g}")
        usual = base ** (-np.arange(0, self.dim, 2) / self.dim)
        return base if np.abs(usual - self.turns).max() < HALF else None

    @property
    def meant_base(self) -> float | None:
        """The base; the usual one where these are the first angles of a whole head, by a mistake in the exponent."""
        if self.base is None or self.dim == self.width:
            return self.base
        whole = abs(np.log(self.base) / np.log(USUAL) - self.dim / self.width) < HALF**0.5
        return USUAL if whole else self.base

    def rotated(self, x: Floats) -> Floats:
        """The rows (..., L, d) rotated by their positions, and as much larger as makes up for the factor."""
        angles = np.arange(x.shape[-2])[:, None] * self.turns
        first, second = _pairs(x[..., : self.dim], self.pairing)
        cos, sin = np.cos(angles), np.sin(angles)
        pair = (first * cos - second * sin, second * cos + first * sin)
        halves = self.pairing is RotaryPairing.HALVES
        mixed = np.concatenate(pair, -1) if halves else np.stack(pair, -1).reshape(*x.shape[:-1], self.dim)
        return np.concatenate([mixed * self.factor**0.5, x[..., self.dim :]], -1)


def _pairs(x: Floats, pairing: RotaryPairing) -> tuple[Floats, Floats]:
    if pairing is RotaryPairing.INTERLEAVED:
        return x[..., ::2], x[..., 1::2]
    first, second = np.split(x, 2, -1)
    return first, second


def angles_of(query: Floats, key: Floats, logs: Floats, scale: float, faintest: float) -> Iterator[Angles]:
    """The angles that explain how much more weight the key before a query has than its own.

    Only one of them, if any, explains the other weights, too.

    Args:
        query: (B, H, L, d).
        key: the same, of which one head may be that of several of queries.
        logs: of weights, (B, H, L, L).
        scale: of scores.
        faintest: the least of the logarithms.
    """
    key = np.broadcast_to(key, query.shape) if key.shape[1] == 1 else key.repeat(query.shape[1] // key.shape[1], 1)
    width, place = query.shape[-1], np.arange(1, query.shape[-2])
    before, own = logs[..., place, place - 1], logs[..., place, place]
    sure = (before > faintest) & (own > faintest)
    if not np.isfinite(before[sure]).all() or sure.sum() <= width + 2:
        return
    seen = (before - own)[sure] / scale
    rows = tuple(x[sure] for x in (query[..., 1:, :], key[..., :-1, :], key[..., 1:, :]))
    for dim in range(2, width + 1, 2):
        if (found := _solved(rows, seen, RotaryPairing.HALVES, dim)) is not None:
            yield found
    if (found := _solved(rows, seen, RotaryPairing.INTERLEAVED, width)) is not None:
        moving = np.flatnonzero(np.abs(found.turns) > HALF)
        yield replace(found, turns=found.turns[: moving[-1] + 1]) if len(moving) else found


def _solved(rows: tuple[Floats, ...], seen: Floats, pairing: RotaryPairing, dim: int) -> Angles | None:
    """The angles of so many components; `rows` are queries, the keys before them, and their own ones."""
    query, before, own = rows
    (q1, q2), (k1, k2), (o1, o2) = (_pairs(x[:, :dim], pairing) for x in rows)
    along, across = q1 * k1 + q2 * k2, q2 * k1 - q1 * k2
    passed = (query[:, dim:] * (before - own)[:, dim:]).sum(-1)
    terms = np.concatenate([along, -across, -(q1 * o1 + q2 * o2).sum(-1, keepdims=True)], -1)
    if not np.isfinite(seen).all():
        return None
    solved = np.linalg.lstsq(terms, seen - passed, rcond=None)[0]
    factor = float(solved[-1])
    if np.abs(terms @ solved - (seen - passed)).max() > HALF * (1.0 + np.abs(seen).max()) or factor <= 0.0:
        return None
    cos, sin = np.split(solved[:-1] / factor, 2)
    is_rotation = np.abs(cos**2 + sin**2 - 1.0).max() < HALF < np.abs(sin).max()
    return Angles(pairing, np.arctan2(sin, cos), query.shape[-1], factor) if is_rotation else None
