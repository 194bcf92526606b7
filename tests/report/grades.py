"""Grades: how precise an implementation's outputs are, dtype by dtype, beyond being right."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from attention_conformance.tests.report.verdict import Status, Verdict

LETTERS = {"A": 1.0, "B": 4.0, "C": 16.0, "D": math.inf}
"""The unit roundoffs below which each letter is given."""


@dataclass(frozen=True)
class Grade:
    """The precision of one implementation in one dtype.

    A letter is no verdict: only the bound of a case decides whether an error is too large.
    A: below 1 unit roundoff, as good as rounding the exact result; B: below 4; C: below 16; D: beyond. In float64 the
    reference's own roundings are part of the error.

    Attributes:
        rms: the median of the passing verdicts (see `Verdict`). A mean would show one clause alone: where
            scores are near -5e11, the best implementation is off by billions of unit roundoffs.
    """

    rms: float

    @property
    def letter(self) -> str:
        return next(letter for letter, below in LETTERS.items() if self.rms < below)


def grade(verdicts: Iterable[Verdict]) -> Mapping[str, Grade]:
    """The grade of one implementation in each dtype; a dtype in which no passing verdict has errors is absent."""
    rms_by_dtype: dict[str, list[float]] = {}
    for verdict in verdicts:
        if verdict.status is Status.PASS and verdict.rms is not None:
            rms_by_dtype.setdefault(verdict.dtype, []).append(verdict.rms)
    return {dtype: Grade(median(errors)) for dtype, errors in rms_by_dtype.items()}
