"""Bits that are read: numbers of float32 that differ only in what TF32 leaves out, and whether anybody sees it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attention_conformance.spec.problem import Array, Problem

CELL, CELL_OF_BFLOAT16 = 1 << 13, 1 << 16
"""From one number of TF32 to the next, and from one of bfloat16, in units of the last place of float32."""
QUARTER, EIGHTH = CELL >> 2, CELL >> 3
"""At a quarter of a cell, an eighth more or less is left out, by rounding to the nearest and by cutting off alike."""


def moved_in_cells(problem: Problem) -> list[Problem]:
    """A problem in float32 whose keys and values are moved by what TF32 leaves out, and last by what bfloat16 does."""
    steps = (QUARTER, QUARTER + EIGHTH, QUARTER - EIGHTH, QUARTER + CELL)
    names = ("key", "value")  # kernels may multiply queries by the scale before they are read
    return [problem.with_arrays({n: _in_cells(getattr(problem, n), step) for n in names}) for step in steps]


def same_in_cells(outputs: Sequence[Array | None]) -> bool:
    """Whether the outputs for these problems are the same number by number, but for the last.

    And whether they keep more bits than float16, whose numbers lie as near to each other as those of TF32.
    """
    first, *near, far = (np.zeros(0) if each is None else np.asarray(each, np.float64) for each in outputs)
    with np.errstate(over="ignore"):
        finer = not np.array_equal(first, first.astype(np.float16))
    return finer and all(np.array_equal(first, each) for each in near) and not np.array_equal(first, far)


def _in_cells(array: Array, step: int) -> Array:
    """Numbers of bfloat16 and this many units of the last place of float32."""
    bits = np.ascontiguousarray(array, np.float32).view(np.int32)
    return ((bits & -CELL_OF_BFLOAT16) + step).view(np.float32)
