"""The slopes of ALiBi: which ones the known rules give to so many heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attention_conformance.spec.case_options import interleaved_slopes


def usual_slopes(heads: int) -> list[list[float]]:
    """The slopes of ALiBi by the rules that there are: powers of one ratio, or of powers of two alone."""
    return [[2.0 ** (-8.0 * h / heads) for h in range(1, heads + 1)], interleaved_slopes(heads).tolist()]


def is_usual(slopes: Sequence[float]) -> bool:
    """Whether they are those of ALiBi, for so many heads."""
    return any(np.allclose(slopes, each, rtol=0.01) for each in usual_slopes(len(slopes)))


def begins_interleaved(slopes: Sequence[float]) -> bool:
    """Whether they begin as those of the powers of two around so many heads, and are of no one ratio.

    The first ones are those of a power of two; whether the later ones are right is for the suite to find out.
    """
    ratio, interleaved = usual_slopes(len(slopes))
    first = 2 ** (len(slopes).bit_length() - 1)
    return np.allclose(slopes[:first], interleaved[:first], rtol=0.01) and not np.allclose(slopes, ratio, rtol=0.01)


def is_reordered(slopes: Sequence[float]) -> bool:
    """Whether they are those of the powers of two around so many heads, in whatever order of the heads."""
    return np.allclose(np.sort(slopes), np.sort(usual_slopes(len(slopes))[1]), rtol=0.01)
