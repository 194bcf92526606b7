"""Noise: what the roundings of a half type do to a sum over queries and keys; the derivation is in `aligned.md`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from attention_conformance.reference.arrays import Floats, Integers
from attention_conformance.reference.bounds.maximum import STEPS, largest
from attention_conformance.reference.bounds.precision import STATE_ROUNDINGS, Precision, unit_roundoff
from attention_conformance.reference.gradients import Backward
from attention_conformance.reference.pipeline import Trace
from attention_conformance.spec.problem import DTYPES

STORED = 3.0
"""Roundings of each weight, and of each of its gradients, that a style may spend: exponential, quotient, product."""
RESULT = 2.0
"""Roundings of each element of a result: before and after its division or scaling."""
UNIFORM = 1.0 / 3.0
"""A rounding error is uniform between its limits, which makes it sub-Gaussian with this part of their square."""
FORMS = 2.0
"""Ways in which D may be formed, from the weights or from the output, each with roundings of its own."""
ELEMENT = RESULT + STATE_ROUNDINGS
"""Roundings of each element of a result with those of the parts that it is kept in."""

SINGLE = unit_roundoff("float32")


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over some samples of a problem, which add up to those over all before anything is squared or loses its sign.

    Attributes:
        chance: variance of independent roundings.
        tied: a factor, and by stored number the sum of all terms that share its rounding.
        systematic: what counts as it is.
        signed: a factor, and sums of which the one that is farthest from 0 counts.
    """

    chance: float = 0.0
    tied: tuple[tuple[float, Floats], ...] = ()
    systematic: float = 0.0
    signed: tuple[tuple[float, tuple[float, ...]], ...] = ()

    @property
    def variance(self) -> float:
        """Of all that is left to chance."""
        return self.chance + sum(factor * _dot(sums, sums) for factor, sums in self.tied)

    @property
    def certain(self) -> float:
        """All that is not."""
        return self.systematic + sum(factor * max(map(abs, sums)) for factor, sums in self.signed)


def of_kinds(kinds: Sequence[Sums]) -> Sums:
    """Of several kinds of roundings in the same samples."""
    return Sums(
        sum(each.chance for each in kinds),
        tuple(tied for each in kinds for tied in each.tied),
        sum(each.systematic for each in kinds),
        tuple(signed for each in kinds for signed in each.signed),
    )


def of_samples(parts: Sequence[Sums]) -> Sums:
    """Of the same kinds of roundings in several parts of a problem."""
    return reduce(_joined, parts)


def _joined(one: Sums, other: Sums) -> Sums:
    return Sums(
        one.chance + other.chance,
        tuple((f, _longer(a, b)) for (f, a), (_, b) in zip(one.tied, other.tied, strict=True)),
        one.systematic + other.systematic,
        tuple(
            (f, tuple(x + y for x, y in zip(a, b, strict=True)))
            for (f, a), (_, b) in zip(one.signed, other.signed, strict=True)
        ),
    )


def _longer(one: Floats, other: Floats) -> Floats:
    """The sum of arrays that end where their last number that is not 0 is."""
    short, long = sorted((one, other), key=len)
    added = long.copy()
    added[: len(short)] += short
    return added


def _dot(one: Floats, other: Floats) -> float:
    """The sum of all products, with no array of them, and on one thread, as BLAS would not."""
    return float(np.einsum("i,i->", one.ravel(), other.ravel()))


class Noise:
    """The roundings of one forward pass, and what they do to a sum over queries and keys."""

    def __init__(self, trace: Trace, scores: Floats, precision: Precision) -> None:
        """`scores` are the bounds of the scores in this precision."""
        self.trace = trace
        self.dtype = DTYPES[precision.dtype]
        u, softmax = unit_roundoff(precision.dtype), float(np.max(precision.softmax))
        self.of_storage, self.of_softmax = UNIFORM * u**2, UNIFORM * softmax**2
        self.systematic = softmax**2
        allowed, lse = trace.seen.allowed, trace.finite_lse
        self.products = np.where(allowed, trace.products, 0.0)
        self.below = np.where(allowed, trace.scores - trace.top, 0.0)
        self.scores = np.where(allowed, trace.scores, 0.0)
        self.raised = trace.weights * np.exp(scores)
        self.constants = _rounded_constants(abs(trace.scale), self.dtype) if softmax > SINGLE else 0.0
        self.apart, self.whole = np.where(allowed, trace.scores - lse, 0.0), lse - trace.top
        self.late = tuple(self._late())
        # What follows is used for each direction of each part.
        self.steps = self._steps()
        self.as_product, self.as_below = (self._bits(each, allowed.shape) for each in (self.products, self.below))
        self.of_tied = np.sqrt(np.square(self.below) + 1.0)
        self.weight_steps = trace.weights * self.steps
        self.row_steps = np.einsum("...j,...j->...", trace.weights, self.weight_steps)
        self.second_order = tuple(self._second_order())
        self.of_weight = STORED + np.maximum(STATE_ROUNDINGS, np.square(self.apart))
        self.of_row = RESULT + np.maximum(STATE_ROUNDINGS, np.square(self.whole[..., 0]))
        self.parts = np.square(trace.weights) @ np.square(trace.value)
        top = largest(trace, scores)
        self.of_top = top / np.maximum(top.sum(-1, keepdims=True), 1)

    def _steps(self) -> Floats:
        """Variance of each score, in squared roundoffs: the steps of `score_bound`, in quadrature."""
        s, x, pi = (np.square(each) for each in (self.scores, self.below, self.products))
        added = 0.0 if self.trace.seen.added is None else s + np.square(2.0 * self.trace.seen.added.size)
        widths = self.trace.scale**2 * (np.square(self.trace.query) @ np.square(self.trace.key).swapaxes(-1, -2))
        return np.asarray(2.0 * pi + added + x + np.maximum(s, x) + 2.0 + 2.0 * widths)

    def _late(self) -> Iterator[Floats]:
        """How far s - lse is off, by weights that are exp(s - lse), in each way of storing what goes into it."""
        by_top, by_zero = np.log(self._stored(np.exp(self.whole))), self.whole + self.trace.top
        for each in (by_top, self.whole):
            yield self._stored(self.below - self._stored(each)) - self.apart
        yield self._stored(self.scores - self._stored(by_zero)) - self.apart

    def _second_order(self) -> Iterator[Floats]:
        """The variances of a score that may be larger or smaller all at once, each a term of `_steps`."""
        yield 2.0 * np.square(self.products)
        yield 2.0 * np.square(np.maximum(np.abs(self.scores), np.abs(self.below)))

    def _stored(self, x: Floats) -> Floats:
        return np.asarray(x.astype(self.dtype).astype(np.float64))

    def _bits(self, numbers: Floats, shape: tuple[int, ...]) -> Integers:
        """The numbers as they are stored, one after another."""
        return np.broadcast_to(numbers, shape).astype(self.dtype).view(np.uint16).ravel().astype(np.intp)

    def _mean(self, along: Floats) -> Floats:
        """(B, H, Lq, 1), by the weights of each row."""
        return np.asarray(np.einsum("...j,...j->...", self.trace.weights, along)[..., None])

    def of_weights(self, along: Floats) -> Sums:
        """Of sum_ij p_ij along_ij: the mixture of values, or the gradient of the values."""
        local = self.raised * along
        return of_kinds([self._of(self.raised * (along - self._mean(along)), local), self._of_late(local)])

    def of_scores(self, step: Backward, along: Floats) -> Sums:
        """Of sum_ij dS_ij along_ij: the gradient of the queries or the keys."""
        gap, mean, by_weight = step.gap, self._mean(along), self.raised * step.weights
        inner, by_mean = gap * along, by_weight * mean
        by_score = self.raised * (inner - self._mean(inner) - gap * mean)
        local = self.raised * inner
        kinds = [self._of(by_score, local), self._of_local(by_mean), self._of_local(by_weight * along)]
        return of_kinds(
            [*kinds, self._of_late(local - by_mean), self._of_centre(step, mean), self._of_sum(step, along)]
        )

    def _of_sum(self, step: Backward, along: Floats) -> Sums:
        """What is left of the sum of a row of dS goes to its largest score, or to one of those that may be it."""
        mean, square = ((self.of_top * each).sum(-1, keepdims=True) for each in (along, np.square(along)))
        terms = np.square(self.trace.weights * step.weights).sum(-1, keepdims=True)
        rows = terms + np.square(step.heads * self.trace.mixed).sum(-1, keepdims=True) + np.square(step.centre)
        stored = self._bits(step.weights, along.shape)
        tied = (self.of_storage, _by_number(self.trace.weights * step.weights * mean, stored))
        return Sums(STEPS * self.of_storage * _dot(square, rows), (tied,))

    def _of_centre(self, step: Backward, mean: Floats) -> Sums:
        """D from the output: each of its elements is stored before it meets the cotangent."""
        elements = np.square(step.heads) * self._elements(self.trace.mixed, self.parts)
        rows = elements.sum(-1, keepdims=True) + FORMS * np.square(step.centre)
        return Sums(self.of_storage * _dot(np.square(mean), rows))

    def of_result(self, direction: Floats, result: Floats, parts: Floats) -> Sums:
        """Of the elements of a result as they are stored: those of one stored value have one error."""
        each = _dot(np.square(direction), self._elements(result, parts))
        stored = _by_number(direction * result, self._bits(result, result.shape))
        return Sums(self.of_storage * each, ((self.of_storage * RESULT, stored),))

    @staticmethod
    def _elements(result: Floats, parts: Floats) -> Floats:
        """Variance of each element in squared roundoffs: stored, and kept in parts that are stored."""
        return np.asarray(ELEMENT * np.square(result) + STATE_ROUNDINGS * parts)

    def _of(self, by_score: Floats, local: Floats) -> Sums:
        """Given the derivatives by each score, and by the logarithm of each weight without its normalisation."""
        squares = _dot(self.steps * by_score, by_score) + self._of_rows(by_score)
        ties = (
            (self.of_softmax, _by_number(self.products * by_score, self.as_product)),
            (self.of_softmax, _by_number(self.of_tied * by_score, self.as_below)),
        )
        # Constants are rounded once for all: the scale, and the change of base.
        constants = (self.constants, (_dot(self.products, by_score), _dot(self.scores, by_score)))
        curved = ((0.5 * self.systematic, (_dot(each, by_score),)) for each in self.second_order)
        evened = float(np.abs(self.row_steps * local.sum(-1)).sum())
        raised = (self.systematic, (_dot(self.weight_steps, by_score),))
        own = Sums(self.of_softmax * squares, ties, self.systematic * evened, (constants, *curved, raised))
        return of_kinds([own, self._of_local(local)])

    def _of_rows(self, by_score: Floats) -> float:
        """The roundings of query and key where the scale is multiplied into them, in squared roundoffs."""
        trace, scale = self.trace, self.trace.scale
        by_query = scale * (by_score @ trace.key) * trace.query
        by_key = scale * (by_score.swapaxes(-1, -2) @ trace.query) * trace.key
        return _dot(by_query, by_query) + _dot(by_key, by_key)

    def _of_local(self, local: Floats) -> Sums:
        """Roundings of each weight for itself, of sums and parts of a row, and of weights that share a stored score.

        Weights are quotients, of parts perhaps, or exponentials of a difference.
        """
        alone, rows = _dot(self.of_weight * local, local), _dot(self.of_row, np.square(local.sum(-1)))
        tied = (self.of_storage, _by_number(local, self.as_below))
        return Sums(self.of_storage * (alone + rows), (tied,))

    def _of_late(self, local: Floats) -> Sums:
        """Of weights that are exp(s - lse), each way of storing for itself: known numbers, and rounded as they are."""
        return Sums(signed=((1.0, tuple(_dot(each, local) for each in self.late)),))


def _by_number(terms: Floats, stored: Integers) -> Floats:
    """The sum of all terms whose number is stored alike: they share their rounding."""
    return np.asarray(np.bincount(stored, terms.ravel(), minlength=1), dtype=np.float64)


def _rounded_constants(scale: float, dtype: np.dtype[Any]) -> float:
    """The largest relative error of the scale as it is stored: alone, as its root, its inverse, or with log2 e."""

    def stored(x: float) -> float:
        return float(np.asarray(x).astype(dtype))

    if not scale:
        return 0.0
    base = math.log2(math.e)
    forms = (stored(scale), stored(math.sqrt(scale)) ** 2, 1.0 / stored(1.0 / scale), stored(scale * base) / base)
    errors = [abs(form / scale - 1.0) for form in forms]
    return max(*errors, errors[0] + abs(stored(base) / base - 1.0)) + SINGLE
