"""Stages: the steps of the equation beyond the core, and the transposes by which gradients go back through them."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attention_conformance.reference.arrays import Floats, Integers
from attention_conformance.spec.conventions import GroupOrder, RotaryPairing
from attention_conformance.spec.features import RotaryTables


def repeat_kv(rows: Floats, num_heads: int, order: GroupOrder) -> Floats:
    """(B, Hk, L, d) -> (B, H, L, d): the key or value head of every query head (chapter grouped)."""
    groups = num_heads // max(1, rows.shape[-3])
    if groups == 1:
        return rows
    if order is GroupOrder.TILED:
        return np.tile(rows, (groups, 1, 1))
    return np.repeat(rows, groups, axis=-3)


def gather(rows: Floats, num_kv_heads: int, order: GroupOrder) -> Floats:
    """(B, H, L, d) -> (B, Hk, L, d): the transpose of `repeat_kv`, a sum over each group."""
    *before, num_heads, length, width = rows.shape
    groups = num_heads // max(1, num_kv_heads)
    if order is GroupOrder.TILED:
        return np.asarray(rows.reshape(*before, groups, num_kv_heads, length, width).sum(-4))
    return np.asarray(rows.reshape(*before, num_kv_heads, groups, length, width).sum(-3))


@dataclass(frozen=True, eq=False)
class Rotation:
    """By what the pairs of the first r components of each token are rotated (chapters positions and rotary-tables).

    Attributes:
        cosines, sines: (B, 1, L, r / 2).
        pairing: which components make a pair.
        angles: (B, 1, L, r / 2), of which these are cosines and sines; None: they are given.
        frequencies: (r / 2,), the angles of position 1, where there are any.
    """

    cosines: Floats
    sines: Floats
    pairing: RotaryPairing
    angles: Floats | None = None
    frequencies: Floats | None = None

    @cached_property
    def pairs(self) -> tuple[slice, slice]:
        """The first and the second components of the pairs."""
        half = self.cosines.shape[-1]
        if self.pairing is RotaryPairing.HALVES:
            return slice(0, half), slice(half, 2 * half)
        return slice(0, 2 * half, 2), slice(1, 2 * half, 2)

    def rotated(self, rows: Floats) -> Floats:
        """(B, H, L, d) -> the same, each pair rotated by its angle."""
        return self._rotated(rows, self.cosines, self.sines)

    def forward(self, rows: Floats) -> Floats:
        """`rotated`, as a step of a route."""
        return self.rotated(rows)

    def back(self, rows: Floats, gradient: Floats) -> Floats:
        """d loss / d rows, which does not depend on them."""
        return self.rotated_back(gradient)

    def rotated_back(self, rows: Floats) -> Floats:
        """The transpose of `rotated`, which is its inverse where cosines and sines are those of angles."""
        return self._rotated(rows, self.cosines, -self.sines)

    def of_sizes(self, sizes: Floats) -> Floats:
        """What `rotated`, or its transpose, makes at most of components of at most these sizes."""
        cosines, sines = np.abs(self.cosines), np.abs(self.sines)
        first, second = (sizes[..., pair] for pair in self.pairs)
        return self._joined(first * cosines + second * sines, first * sines + second * cosines, sizes)

    def summed(self, sizes: Floats, each: Floats) -> Floats:
        """(B, H, L, d): `each`, (B, 1, L, r / 2), times the sum of the sizes of both components of a pair; else 0."""
        first, second = (sizes[..., pair] for pair in self.pairs)
        both = each * (first + second)
        return self._joined(both, both, np.zeros_like(sizes))

    def _rotated(self, rows: Floats, cosines: Floats, sines: Floats) -> Floats:
        first, second = (rows[..., pair] for pair in self.pairs)
        return self._joined(first * cosines - second * sines, first * sines + second * cosines, rows)

    def _joined(self, first: Floats, second: Floats, rest: Floats) -> Floats:
        """The two components of the pairs, and behind them those of `rest`."""
        joined = rest.copy()
        joined[..., self.pairs[0]], joined[..., self.pairs[1]] = first, second
        return joined


def rotation(places: Integers, width: int, base: float, pairing: RotaryPairing) -> Rotation:
    """Angle of pair c of a token at position m: m * base ** (-2 c / width) (Su et al. 2021, eq. 15)."""
    per_position = frequencies(width, base)
    angles = places[:, None, :, None] * per_position
    return Rotation(np.cos(angles), np.sin(angles), pairing, angles, per_position)


def given_rotation(
    tables: tuple[Floats, Floats], kind: RotaryTables, places: Integers, pairing: RotaryPairing
) -> Rotation:
    """That by given cosines and sines, of tokens at positions (B, L) (chapter rotary-tables)."""
    if kind is RotaryTables.POSITIONS:
        tables = tables[0][..., places, :], tables[1][..., places, :]
    if kind in (RotaryTables.DOUBLED, RotaryTables.REPEATED):
        half = tables[0].shape[-1] // 2
        once = slice(half) if kind is RotaryTables.DOUBLED else slice(None, None, 2)
        tables = tables[0][..., once], tables[1][..., once]
    cosines, sines = (table[..., None, :, :] for table in tables)
    return Rotation(cosines, sines, pairing)


def frequencies(width: int, base: float) -> Floats:
    """(width / 2,): base ** (-2 c / width)."""
    return np.asarray(base ** (-np.arange(0, width, 2) / width))


def cap(scores: Floats, limit: float | None) -> Floats:
    """limit * tanh(scores / limit), or the scores where there is no limit (chapter softcap)."""
    return scores if limit is None else limit * np.tanh(scores / limit)


def append(rows: Floats, extra: Floats) -> Floats:
    """(B, H, L, d) and (H, d) -> (B, H, L + 1, d): one more key or value, the same for each sample."""
    column = np.broadcast_to(extra[..., None, :], (*rows.shape[:-2], 1, rows.shape[-1]))
    return np.concatenate([rows, column], axis=-2)
