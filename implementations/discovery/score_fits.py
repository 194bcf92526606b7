"""Scores that may explain the weights which a candidate reveals, by their logarithms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from attention_conformance.implementations.discovery.always_norms import BareNorm
from attention_conformance.implementations.discovery.always_slopes import usual_slopes
from attention_conformance.implementations.discovery.probe import HALF, Floats, ObservedWeights
from attention_conformance.spec.conventions import RotaryPairing
from attention_conformance.spec.masks import Booleans
from attention_conformance.spec.premises import Premises
from attention_conformance.spec.problem import Problem

FAINTEST = {"float16": math.log(2.0**-12)}
"""Logarithm of a weight below which nothing is compared: float16 has fewer digits of smaller ones."""
FAINTEST_OF_OTHERS = math.log(1e-12)
OFF = {"bfloat16": 2.0**-5, "float16": 2.0**-7}
"""How far logarithms of weights may be off in half types: some roundings of the scores and of the weights."""
SAME = 32.0 * float(np.finfo(np.float32).eps)
"""How far a factor that weights of float32 show may be from the number that is meant."""
CAPS, POINTS = (1.0, 200.0), 40
"""Bounds of scores that are looked for, and how many are tried between two."""


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores (B, H, L, L), which may explain the logarithms of observed weights.

    Attributes:
        query, key: (B, H, L, d).
        logs: of the observed weights, none below `faintest`.
        premises: causal, window and scale are those of the scores.
        bias: (H, L, L), added to them.
    """

    query: Floats
    key: Floats
    logs: Floats
    premises: Premises
    bias: Floats | float = 0.0
    faintest: float = FAINTEST_OF_OTHERS
    allowed: float = HALF

    @classmethod
    def of(cls, observed: ObservedWeights, problem: Problem, premises: Premises) -> Scores:
        """Those of a problem whose weights were observed."""
        faintest = FAINTEST.get(problem.dtype, FAINTEST_OF_OTHERS)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.maximum(np.log(observed.weights), faintest)
        made = cls(problem.query.astype(np.float64), problem.key.astype(np.float64), logs, premises)
        return replace(made, faintest=faintest, allowed=OFF.get(problem.dtype, HALF))

    def normalised(self, norm: BareNorm, dtype: str) -> Scores:
        """With query and key normalised."""
        return replace(self, query=norm.applied(self.query, dtype), key=norm.applied(self.key, dtype))

    def rotated(self, base: float | None, pairing: RotaryPairing) -> Scores:
        """With query and key rotated."""
        if not base:
            return self
        return replace(self, query=rotated(self.query, base, pairing), key=rotated(self.key, base, pairing))

    def fits(self, cap: float | None) -> bool:
        """Whether the scores, kept below a bound, give the observed weights."""
        return bool((np.abs(self._logs(cap) - self.logs) <= self.allowed * (1.0 + np.abs(self.logs))).all())

    def slopes(self) -> list[float]:
        """By how much each head's scores fall with the distance of a key, where these are the slopes of ALiBi."""
        place = np.arange(self.logs.shape[-1])
        rest = self.logs - self._logs(None)
        found = np.median(rest[..., place[1:], place[1:]] - rest[..., place[1:], place[:-1]], axis=(0, -1))
        distance = np.abs(place - place[:, None])
        if self.allowed > HALF:  # the smallest slopes are lost among roundings: only usual ones are looked for
            usual = [] if self.fits(None) else usual_slopes(len(found))
            tried = (each for each in usual if replace(self, bias=-np.array(each)[:, None, None] * distance).fits(None))
            return next(tried, [])
        if (found < HALF).any() or not near_whole(np.log2(found) * len(found)):
            return []
        biased = replace(self, bias=-found[:, None, None] * distance)
        return [float(slope) for slope in found] if biased.fits(None) else []

    def best_cap(self) -> float:
        """The bound that explains them best, to three digits; in half types to as few as explain them."""
        low, high = np.log(CAPS[0]), np.log(CAPS[-1])
        for _ in range(6):
            tried = np.linspace(low, high, POINTS)
            at = int(np.argmin([self.off(math.exp(each)) for each in tried]))
            low, high = tried[max(at - 1, 0)], tried[min(at + 1, POINTS - 1)]
        best = math.exp((low + high) / 2)
        rounded = [float(f"{best:.{digits}g}") for digits in ((1, 2, 3) if self.allowed > HALF else (3,))]
        return next(filter(self.fits, rounded), rounded[-1])

    def cap_of_large(self) -> float | None:
        """The bound without which large scores are not explained, if there is one."""
        best = None if self.fits(None) else self.best_cap()
        return best if best is not None and self.fits(best) else None

    def factor(self) -> float:
        """The factor of products of query and key that explains the logarithms best, to three digits if it can be."""
        seen = _seen(self.premises, self.logs.shape[-1])
        shares = seen / seen.sum(-1, keepdims=True)
        products, logs = (
            np.where(seen, each - (each * shares).sum(-1, keepdims=True), 0.0)
            for each in (self.query @ self.key.swapaxes(-1, -2), self.logs)
        )
        square = float(np.square(products).sum())
        best = float((products * logs).sum()) / square if square else 0.0
        rounded = float(f"{best:.3g}")
        return rounded if self.allowed > HALF or abs(best - rounded) < SAME * abs(rounded) else best

    def off(self, cap: float | None) -> float:
        """How far the logarithms are from the observed ones."""
        return float(np.abs(self._logs(cap) - self.logs).max())

    def _logs(self, cap: float | None) -> Floats:
        scale = self.query.shape[-1] ** -0.5 if self.premises.scale is None else self.premises.scale
        scores = self.query @ self.key.swapaxes(-1, -2) * scale
        scores = (scores if cap is None else cap * np.tanh(scores / cap)) + self.bias
        scores = np.where(_seen(self.premises, scores.shape[-1]), scores, -np.inf)
        scores -= scores.max(-1, keepdims=True)
        logs: Floats = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        return np.maximum(logs, self.faintest)


def near_whole(numbers: Floats) -> bool:
    """Whether all are whole numbers but for rounding."""
    return bool((np.abs(numbers - np.round(numbers)) < 0.01).all())


def _seen(premises: Premises, length: int) -> Booleans:
    """(L, L), True = the query sees the key."""
    ahead = np.arange(length) - np.arange(length)[:, None]
    left, right = premises.window_left, premises.window_right
    right = 0 if premises.causal else right
    return np.asarray((ahead <= (length if right is None else right)) & (-ahead <= (length if left is None else left)))


def angles_of(length: int, width: int, base: float) -> Floats:
    """(L, d / 2): by which the pairs of each row are rotated."""
    return np.asarray(np.arange(length)[:, None] * base ** (-np.arange(0, width, 2) / width))


def rotated(x: Floats, base: float, pairing: RotaryPairing) -> Floats:
    """The rows (..., L, d) rotated by their positions; d is even."""
    angles = angles_of(x.shape[-2], x.shape[-1], base)
    cos, sin = np.cos(angles), np.sin(angles)
    halves = pairing is RotaryPairing.HALVES
    first, second = np.split(x, 2, -1) if halves else (x[..., ::2], x[..., 1::2])
    pair = (first * cos - second * sin, second * cos + first * sin)
    return np.concatenate(pair, -1) if halves else np.stack(pair, -1).reshape(x.shape)
