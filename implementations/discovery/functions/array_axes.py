"""Axes of arrays that a function needs and whose meaning is unknown: how one is made of a parameter of fixed size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.implementations.discovery.functions.stored_axes import permuted

SAMPLES, HEADS, QUERIES, KEYS, DISTANCES, WIDTH, ALL_WIDTHS, COUNT = "BHQKRDEC"
"""Axes: samples, heads, query and key tokens, the distances of all pairs, the width of one head or of all, a number."""
FARTHEST = 64
"""Distance beyond which all pairs share one row of a parameter."""
OF_DISTANCES = ("HRD", "RD", "1HRD", "BHRD", "RHD", "1RD", "HR", "RH", "R", "HQKD", "QKD", "BQKD", "BHQKD")
OF_TOKENS = ("HKD", "KD", "1HKD", "BHKD", "KHD", "BKHD", "1KD", "BKD", "KE", "BKE", "HK", "BHK", "BKH", "K", "BK")
OF_PAIRS = ("HQK", "QK", "1HQK", "BHQK", "BQK", "QKH", "BQKH")
OF_HEADS = ("HD", "H1D", "1H1D", "11HD", "E", "D", "H11", "1H11", "H1", "H", "HH", "")
OF_COUNT = ("HCD", "CHD", "CD", "1HCD", "BHCD", "CH", "HC", "C")
GROUPS = (
    ({"rel", "relative", "dist", "distance", "distances", "offset", "offsets"}, (OF_DISTANCES, OF_COUNT, OF_TOKENS)),
    ({"pos", "position", "positional", "r", "emb", "embedding", "table", "pe"}, (OF_TOKENS, OF_DISTANCES, OF_COUNT)),
    ({"u", "w", "bias", "scale", "gain", "gamma", "beta", "temp", "temperature", "tau", "lambda", "lam"}, (OF_HEADS,)),
    ({"gate", "gates", "decay", "decays", "forget", "log"}, (OF_TOKENS, OF_HEADS)),
    ({"mem", "memory", "extra", "null", "sink", "prefix", "persistent"}, (OF_COUNT, OF_HEADS)),
    ({"pair", "edge", "edges", "logits", "scores"}, (OF_PAIRS,)),
)
"""Words in names of arrays, with the groups of axes that are the likelier there."""
EVERY = (OF_HEADS, OF_DISTANCES, OF_TOKENS, OF_PAIRS, OF_COUNT)


@dataclass(frozen=True)
class Sizes:
    """Those of one call."""

    samples: int
    heads: int
    queries: int
    keys: int
    width: int


@dataclass(frozen=True)
class Axes:
    """The axes of an array, in order; see the letters above, and 1.

    Attributes:
        letters: one for each.
        count: the length of the axis of a number.
        last: whether the last row of the tokens is that of the smallest distance, and not the first one.
    """

    letters: str
    count: int = 0
    last: bool = True

    @property
    def rows(self) -> str:
        """How a row is chosen: by pairs of tokens, all distances, tokens or a number; empty: there are none."""
        return "".join(axis for axis in self.letters if axis in (QUERIES, KEYS, DISTANCES, COUNT))

    @property
    def held(self) -> str:
        """The axes of the parameter: heads, rows, width; those of biases are rows and heads."""
        axes = "".join(axis for axis in (HEADS, "r", WIDTH, ALL_WIDTHS) if axis in self.letters or axis == "r")
        axes = axes if self.rows else axes.replace("r", "")
        return "rH" if axes == "Hr" else "HH" if self.letters == "HH" else axes

    def shape(self, heads: int, width: int) -> tuple[int, ...]:
        """That of the parameter."""
        one_sided = self.rows == KEYS
        rows = self.count if self.rows == COUNT else FARTHEST + 1 if one_sided else 2 * FARTHEST + 1
        extents = {HEADS: heads, "r": rows, WIDTH: width, ALL_WIDTHS: heads * width}
        return tuple(extents[axis] for axis in self.held)

    def made(self, parameter: Any, sizes: Sizes) -> Any:
        """The array for a call, of the parameter."""
        index, names = self._index(sizes.queries, sizes.keys), self.held
        if index is not None:
            at = names.index("r")
            parameter = parameter[(slice(None),) * at + (index,)]
            names = names.replace("r", self.rows)
        wanted = "".join(axis for axis in self.letters if axis in names)
        array = permuted(parameter, names, wanted)
        for at, axis in enumerate(self.letters):
            if axis in ("1", SAMPLES):
                array = array[(slice(None),) * at + (None,)]
        return array[np.zeros(sizes.samples, int)] if self.letters.startswith(SAMPLES) else array

    def _index(self, queries: int, keys: int) -> Any:
        """The row of the parameter for each of the array: of pairs, (Lq, Lk); None where there are none to choose."""
        place = np.arange(keys)
        if self.rows == QUERIES + KEYS:
            return np.clip(place - np.arange(queries)[:, None], -FARTHEST, FARTHEST) + FARTHEST
        if self.rows == DISTANCES:
            return np.clip(np.arange(1 - queries, keys), -FARTHEST, FARTHEST) + FARTHEST
        if self.rows == KEYS:
            return np.minimum(place[::-1] if self.last else place, FARTHEST)
        return np.arange(self.count) if self.rows else None


def axes_of(name: str, count: int, ranks: frozenset[int], counted: bool = False) -> Iterator[Axes]:
    """The axes that an array of this name may have, the likelier first.

    Args:
        name: of the parameter that takes it.
        count: a number that may be the length of one.
        ranks: how many there are, as its documentation states; none: it states nothing.
        counted: whether that states a largest distance, so that its rows are so many, however many tokens there are.
    """
    words = {*name.lower().split("_")}
    likelier = [OF_COUNT] * counted + [group for known, groups in GROUPS if words & known for group in groups]
    for group in dict.fromkeys((*likelier, *EVERY)):
        for letters in group:
            if not ranks or len(letters) in ranks:
                yield Axes(letters, count if COUNT in letters else 0)
