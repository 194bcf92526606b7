"""Norms of queries and keys (chapter qk-norm), and how gradients go back through them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.spec.conventions import Conventions, NormDefault, NormGain, NormKind
from attention_conformance.spec.features import NORM_EPSILON, QkNorm
from attention_conformance.spec.problem import Problem


@dataclass(frozen=True, eq=False)
class Norm:
    """Rows divided by their size, times a gain.

    Attributes:
        kind: which size.
        over: the axes of (B, H, L, d) over which it is taken.
        epsilon: what is added to the mean square; of lengths, the least one that is divided by.
        gain: (1 or H, 1, d) factors; None: there are none.
    """

    kind: NormKind
    over: tuple[int, ...]
    epsilon: float
    gain: Floats | None

    def forward(self, rows: Floats) -> Floats:
        """(B, H, L, d) -> the same."""
        return self.amplified(self.unit(rows))

    def back(self, rows: Floats, gradient: Floats) -> Floats:
        """d loss / d rows: what changes the size of a row has no effect, but for epsilon."""
        unit, scaled = self.unit(rows), self.amplified(gradient)
        away = scaled - unit * (scaled * unit).sum(self.over, keepdims=True) / self.count(rows)
        if self.kind is NormKind.L2 and self.epsilon:
            away = np.where(self.mean_square(rows) < self.epsilon**2, scaled, away)
        return self.centred(away * self.inverse(rows))

    def of_gain(self, rows: Floats, gradient: Floats) -> Floats:
        """d loss / d gain, (d,) or (H * d,), as it is given."""
        return self.gathered(gradient * self.unit(rows))

    def gathered(self, each: Floats) -> Floats:
        """(B, H, L, d) -> (d,) or (H * d,): summed over all that shares a gain."""
        if len(self.over) == 1:
            return np.asarray(each.sum((-4, -3, -2)))
        return np.asarray(each.sum((-4, -2))).reshape(*each.shape[:-4], -1)

    def amplified(self, rows: Floats) -> Floats:
        """Times the gain."""
        return rows if self.gain is None else rows * self.gain

    def unit(self, rows: Floats) -> Floats:
        """Divided by their size."""
        return np.asarray(self.centred(rows) * self.inverse(rows))

    def centred(self, rows: Floats) -> Floats:
        """Without their mean, where that is taken off; it is its own transpose."""
        if self.kind is not NormKind.LAYER:
            return rows
        return np.asarray(rows - rows.mean(self.over, keepdims=True))

    def inverse(self, rows: Floats) -> Floats:
        """(B, 1 or H, L, 1): one over the size."""
        square = self.mean_square(rows)
        square = np.maximum(square, self.epsilon**2) if self.kind is NormKind.L2 else square + self.epsilon
        return np.asarray(1.0 / np.sqrt(np.maximum(square, np.finfo(np.float64).tiny)))

    def mean_square(self, rows: Floats) -> Floats:
        """(B, 1 or H, L, 1): the mean of the squares; of lengths, their sum."""
        squares = np.square(self.centred(rows)).sum(self.over, keepdims=True)
        return np.asarray(squares / self.count(rows))

    def count(self, rows: Floats) -> float:
        """By so many the sum of the squares is divided."""
        components = float(np.prod([rows.shape[axis] for axis in self.over]))
        return 1.0 if self.kind is NormKind.L2 else max(components, 1.0)


def norm(problem: Problem, conventions: Conventions, role: str, heads: int) -> Norm | None:
    """That of queries or keys (role), which come in so many heads; None where there is none."""
    span, gain = problem.extension.qk_norm, problem.extras.get(f"{role}_norm")
    if span is QkNorm.NONE:
        return None
    over = (-3, -1) if span is QkNorm.WIDTH else (-1,)
    return Norm(
        conventions.norm_kind,
        over,
        epsilon_of(problem, conventions),
        None if gain is None else _gain(gain, conventions, heads, span),
    )


def epsilon_of(problem: Problem, conventions: Conventions) -> float:
    """That of its norms."""
    given = problem.extension.norm_epsilon
    if given is not None:
        return given
    if conventions.norm_default is NormDefault.FIXED:
        return NORM_EPSILON
    return float(np.finfo(np.float64 if problem.dtype == "float64" else np.float32).eps)


def _gain(given: Floats, conventions: Conventions, heads: int, span: QkNorm) -> Floats:
    """(1, 1, d) or (H, 1, d), by which is multiplied."""
    gain = np.asarray(given, np.float64)
    gain = gain + 1.0 if conventions.norm_gain is NormGain.PLUS_ONE else gain
    together = heads if span is QkNorm.WIDTH else 1
    return gain.reshape(*gain.shape[:-1], together, 1, gain.shape[-1] // together)
