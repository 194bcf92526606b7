"""Aligned bounds: how far the error of a whole array may point in one direction, where it is computed in a half type.

The derivation and its assumptions are in `aligned.md` next to this file; the names below are its symbols, written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, TypeAlias

import numpy as np

from attention_conformance.reference.arrays import Floats, Integers
from attention_conformance.reference.bounds.attention import NEAR, ForwardBounds, forward_bounds
from attention_conformance.reference.bounds.gradients import gradient_bounds
from attention_conformance.reference.bounds.precision import STATE_ROUNDINGS, Precision, unit_roundoff
from attention_conformance.reference.gradients import Backward, backward, cotangent_of_heads
from attention_conformance.reference.pipeline import Trace
from attention_conformance.reference.stages import gather, repeat_kv
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import DTYPES, HALF, Problem

FALSE_ALARM = 1e-9
"""The probability, for each check, that independent roundings of a correct answer exceed the bound."""
STORED = 3.0
"""Roundings of each weight, and of each of its gradients, that a style may spend: exponential, quotient, product."""
RESULT = 2.0
"""Roundings of each element of a result: before and after its division or scaling."""
UNIFORM = 1.0 / 3.0
"""A rounding error is uniform between its limits, which makes it sub-Gaussian with this part of their square."""
ROUNDED = ("alibi_slopes", "relative_bias", "bucketed_bias", "key_scale", "value_scale", "w_uk")
"""Arrays that are added to the scores, or multiply keys and values or make them, and have roundings of their own."""
FORMS = 2.0
"""Ways in which D may be formed, from the weights or from the output, each with roundings of its own."""

SINGLE = unit_roundoff("float32")

Sums: TypeAlias = tuple[float, float]
"""Variance of the independent roundings, and the sum of what is systematic."""
Direction: TypeAlias = tuple[str, Floats]
"""What an error in it means, and an array like the result."""


@dataclass(frozen=True, eq=False)
class Aligned:
    """A direction, and how large the inner product of a correct answer's error with it may be.

    Attributes:
        name: what an error in the direction means, such as "its size".
        direction: shaped like the array.
        least: what the roundings of the result alone would allow; `bound` allows more.
        work_out: finds `bound`, which takes longer than everything else that is known of an answer.
    """

    name: str
    direction: Floats
    least: float
    work_out: Callable[[], float]

    @cached_property
    def bound(self) -> float:
        """Of |sum(error * direction)|."""
        return self.work_out()

    def ratio(self, error: Floats) -> float:
        """The inner product in units of its bound."""
        return self._product(error) / self.bound

    def certainly_within(self, share: float, error: Floats) -> bool:
        """Whether the ratio is at most this for a reason that needs no bound worked out."""
        return self._product(error) <= share * self.least

    def _product(self, error: Floats) -> float:
        return abs(float((error * self.direction).sum()))

    @property
    def limit(self) -> float:
        """The largest coefficient of the direction in a correct answer's error."""
        return self.bound / float(np.square(self.direction).sum())

    def share(self, error: Floats) -> float:
        """The coefficient of the direction in the error: 0.02 where the answer has moved by 2 % of it."""
        return float((error * self.direction).sum()) / float((self.direction**2).sum())


Solved: TypeAlias = Callable[[], tuple[Trace, ForwardBounds]]
"""Solves the problem anew: its trace takes too much memory to be kept until a bound is worked out."""


def aligned_bounds(
    problem: Problem, trace: Trace, forward: ForwardBounds, parts: Mapping[str, Floats], solved: Solved
) -> dict[str, tuple[Aligned, ...]]:
    """The aligned bounds of the output and of the gradients of query, key and value; none where no analysis holds.

    It is one problem, no stack of several; `parts` are the expected values by the names of the answer's parts.
    """
    if not _applies(problem, trace, forward):
        return {}
    directions = {part: tuple(_directions(problem, trace, part, parts[part])) for part in _parts(problem)}
    worked_out = cache(lambda: _bounds(problem, *solved(), directions))
    return {
        part: tuple(
            Aligned(*each, _least(trace, each[1], parts[part], problem.dtype), partial(_nth, worked_out, part, n))
            for n, each in enumerate(several)
        )
        for part, several in directions.items()
    }


def _nth(worked_out: Callable[[], Mapping[str, list[float]]], part: str, number: int) -> float:
    return worked_out()[part][number]


def _parts(problem: Problem) -> Iterator[str]:
    yield "output"
    if problem.cotangent is not None:
        yield from (f"gradients.{name}" for name in ("query", "key", "value") if name in problem.needs)


def _directions(problem: Problem, trace: Trace, part: str, value: Floats) -> Iterator[Direction]:
    """Those that are not zero."""
    for name, direction in _named_directions(problem, trace, part, value):
        if direction.any():
            yield name, direction


def _named_directions(problem: Problem, trace: Trace, part: str, value: Floats) -> Iterator[Direction]:
    """The value itself, what a factor of the scores changes, and what D takes away from a gradient."""
    yield "its size", value
    if part == "output":
        products = np.where(trace.seen.allowed, trace.products, 0.0)
        moved = trace.weights * (products - (trace.weights * products).sum(-1, keepdims=True))
        yield "a change of the scale", moved @ trace.value
    elif part != "gradients.value":
        yield "a change of D", _by_centre(trace, backward(trace, cotangent_of_heads(problem)), part, value)


def _by_centre(trace: Trace, step: Backward, part: str, gradient: Floats) -> Floats:
    """The sum over keys, or queries, of the weights times D: what a factor of D would change."""
    if part == "gradients.query":
        return np.asarray(trace.scale * step.centre * (trace.weights @ trace.key))
    by_head = trace.scale * (trace.weights.swapaxes(-1, -2) @ (step.centre * trace.query))
    return gather(by_head, gradient.shape[-3], trace.order)


def _least(trace: Trace, direction: Floats, value: Floats, dtype: str) -> float:
    """The bound with nothing but `of_result`, and of that without the parts and what is stored alike."""
    heads = trace.query.shape[-3] // value.shape[-3]  # the squares of a sum over them are at most so many times theirs
    squares = float(np.square(direction * value).sum()) / heads
    return _chance(UNIFORM * unit_roundoff(dtype) ** 2 * (RESULT + STATE_ROUNDINGS) * squares)


def _chance(variance: float) -> float:
    """Hoeffding's inequality."""
    return math.sqrt(2.0 * math.log(2.0 / FALSE_ALARM) * variance)


def _bounds(
    problem: Problem, trace: Trace, forward: ForwardBounds, directions: Mapping[str, Sequence[Direction]]
) -> dict[str, list[float]]:
    """The bound of each direction, by part."""
    noise, single = _Noise(trace, forward), _in_single(forward.precision)
    exact = forward_bounds(problem, trace, single)
    bounds = {"output": [_of_output(noise, each, exact.output) for _, each in directions["output"]]}
    if problem.cotangent is not None:
        step = backward(trace, cotangent_of_heads(problem))
        errors = gradient_bounds(problem, trace, exact, single)
        for part in directions.keys() - {"output"}:
            name = part.removeprefix("gradients.")
            bounds[part] = [_of_gradient(noise, step, name, each, errors[name]) for _, each in directions[part]]
    return bounds


def _applies(problem: Problem, trace: Trace, forward: ForwardBounds) -> bool:
    """Half types at the op level, no option that changes more than which keys are visible, and moderate scores."""
    half = isinstance(forward.precision.storage, float) and problem.dtype in HALF
    unchanged = all(each is None for each in (trace.kept, trace.softcap, trace.gates, trace.opened))
    plain = (
        unchanged
        and trace.routes.direct
        and trace.key.shape[-2] == problem.key.shape[-2]
        and not {*problem.extras} & {*ROUNDED}
    )
    moderate = trace.weights.size > 0 and float(forward.scores.max()) <= NEAR
    return half and problem.scope is Scope.OP and plain and moderate and _finite(trace)


def _finite(trace: Trace) -> bool:
    rows = (trace.query, trace.key, trace.value, trace.mixed, trace.weights)
    return all(bool(np.isfinite(each).all()) for each in rows) and bool(trace.seen.allowed.any(-1).all())


def _in_single(precision: Precision) -> Precision:
    """The same with all roundings of float32, and the floor of the half type: what is not left to chance."""
    return replace(precision, storage=precision.accumulator, softmax=precision.accumulator)


def _of_output(noise: _Noise, direction: Floats, exact: Floats) -> float:
    trace = noise.trace
    sums = noise.of_weights(direction @ trace.value.swapaxes(-1, -2))
    parts = np.square(trace.weights) @ np.square(trace.value)
    return _bound(direction, [sums, noise.of_result(direction, trace.mixed, parts)], exact)


def _of_gradient(noise: _Noise, step: Backward, name: str, direction: Floats, exact: Floats) -> float:
    """Of a direction of a gradient; those of a group's key and value are repeated for its query heads."""
    trace, wide = noise.trace, direction
    if name != "query":
        wide = repeat_kv(direction, trace.query.shape[-3], trace.order)
    if name == "value":
        sums, parts = noise.of_weights(step.heads @ wide.swapaxes(-1, -2)), _squares(trace.weights, step.heads)
        result = step.value
    elif name == "key":
        sums = noise.of_scores(step, trace.scale * (trace.query @ wide.swapaxes(-1, -2)))
        parts, result = trace.scale**2 * _squares(step.scores, trace.query), step.key
    else:
        sums = noise.of_scores(step, trace.scale * (wide @ trace.key.swapaxes(-1, -2)))
        parts, result = trace.scale**2 * (np.square(step.scores) @ np.square(trace.key)), step.query
    return _bound(direction, [sums, noise.of_result(wide, result, parts)], exact)


def _squares(weights: Floats, rows: Floats) -> Floats:
    return np.asarray(np.square(weights).swapaxes(-1, -2) @ np.square(rows))


def _bound(direction: Floats, sums: list[Sums], exact: Floats) -> float:
    """What independent roundings seldom exceed, and what is not left to chance."""
    systematic = sum(each for _, each in sums) + float((np.abs(direction) * exact).sum())
    return _chance(sum(variance for variance, _ in sums)) + systematic


class _Noise:
    """The roundings of one forward pass, and what they do to a sum over queries and keys."""

    def __init__(self, trace: Trace, forward: ForwardBounds) -> None:
        self.trace, self.forward = trace, forward
        self.dtype = DTYPES[forward.precision.dtype]
        self.u, self.softmax = (unit_roundoff(forward.precision.dtype), float(np.max(forward.precision.softmax)))
        allowed = trace.seen.allowed
        self.products = np.where(allowed, trace.products, 0.0)
        self.below = np.where(allowed, trace.scores - trace.top, 0.0)
        self.scores = np.where(allowed, trace.scores, 0.0)
        self.raised = trace.weights * np.exp(forward.scores)
        self.constants = _rounded_constants(abs(trace.scale), self.dtype) if self.softmax > SINGLE else 0.0
        self.steps = self._steps()
        lse = trace.finite_lse
        self.apart, self.whole = np.where(allowed, trace.scores - lse, 0.0), lse - trace.top
        self.late = tuple(self._late())
        # What follows is used for each direction of each part.
        self.as_product, self.as_below = (self._bits(each, allowed.shape) for each in (self.products, self.below))
        self.weight_steps = trace.weights * self.steps
        self.row_steps = (np.square(trace.weights) * self.steps).sum(-1)
        self.second_order = tuple(self._second_order())
        self.parts, self.row_parts = (
            np.maximum(STATE_ROUNDINGS, np.square(x)) for x in (self.apart, self.whole[..., 0])
        )

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

    def _stored(self, x: Floats) -> Floats:
        return np.asarray(x.astype(self.dtype).astype(np.float64))

    def of_weights(self, along: Floats) -> Sums:
        """Of sum_ij p_ij along_ij: the mixture of values, or the gradient of the values."""
        centred = along - (self.trace.weights * along).sum(-1, keepdims=True)
        local = self.raised * along
        return _added([self._of(self.raised * centred, local), self._of_late(local)])

    def of_scores(self, step: Backward, along: Floats) -> Sums:
        """Of sum_ij dS_ij along_ij: the gradient of the queries or the keys."""
        p, gap, d_p = self.raised, step.weights - step.centre, step.weights
        mean = (self.trace.weights * along).sum(-1, keepdims=True)
        inner = gap * along
        by_score = inner - (self.trace.weights * inner).sum(-1, keepdims=True) - gap * mean
        sums = [self._of(p * by_score, p * inner), self._of_local(p * d_p * mean), self._of_local(p * d_p * along)]
        return _added([*sums, self._of_late(p * (inner - d_p * mean)), self._of_centre(step, mean)])

    def _of_centre(self, step: Backward, mean: Floats) -> Sums:
        """D from the output: each of its elements is stored before it meets the cotangent."""
        output, g = self.trace.mixed, np.square(step.heads)
        parts = np.square(self.trace.weights) @ np.square(self.trace.value)
        rows = (g * self._elements(output, parts)).sum(-1, keepdims=True) + FORMS * np.square(step.centre)
        return UNIFORM * self.u**2 * float((np.square(mean) * rows).sum()), 0.0

    def of_result(self, direction: Floats, result: Floats, parts: Floats) -> Sums:
        """Of the elements of a result as they are stored: those of one stored value have one error."""
        each = float((np.square(direction) * self._elements(result, parts)).sum())
        stored = self._bits(result, result.shape)
        return UNIFORM * self.u**2 * (each + RESULT * _tied(direction * result, stored)), 0.0

    @staticmethod
    def _elements(result: Floats, parts: Floats) -> Floats:
        """Variance of each element in squared roundoffs: stored, and kept in parts that are stored."""
        return np.asarray((RESULT + STATE_ROUNDINGS) * np.square(result) + STATE_ROUNDINGS * parts)

    def _of(self, by_score: Floats, local: Floats) -> Sums:
        """Given the derivatives by each score, and by the logarithm of each weight without its normalisation."""
        chance, systematic = self._of_local(local)
        u = self.softmax
        squares = float((self.steps * np.square(by_score)).sum()) + self._of_rows(by_score)
        ties = _tied(self.products * by_score, self.as_product)
        ties += _tied(np.sqrt(np.square(self.below) + 1.0) * by_score, self.as_below)
        # Constants are rounded once for all: the scale, and the change of base.
        constants = self.constants * max(abs(float((each * by_score).sum())) for each in (self.products, self.scores))
        curved = 0.5 * u * u * sum(abs(float((each * by_score).sum())) for each in self.second_order)
        evened = float(np.abs(self.row_steps * local.sum(-1)).sum())
        evened += abs(float((self.weight_steps * by_score).sum()))
        return chance + UNIFORM * u * u * (squares + ties), systematic + constants + curved + u * u * evened

    def _second_order(self) -> Iterator[Floats]:
        """The variances of a score that may be larger or smaller all at once, each a term of `_steps`."""
        yield 2.0 * np.square(self.products)
        yield 2.0 * np.square(np.maximum(np.abs(self.scores), np.abs(self.below)))

    def _of_rows(self, by_score: Floats) -> float:
        """The roundings of query and key where the scale is multiplied into them, in squared roundoffs."""
        trace, scale = self.trace, self.trace.scale
        by_query = scale * (by_score @ trace.key) * trace.query
        by_key = scale * (by_score.swapaxes(-1, -2) @ trace.query) * trace.key
        return float(np.square(by_query).sum() + np.square(by_key).sum())

    def _of_local(self, local: Floats) -> Sums:
        """Roundings of each weight for itself, of sums and parts of a row, and of weights that share a stored score.

        Weights are quotients, of parts perhaps, or exponentials of a difference.
        """
        alone = float(((STORED + self.parts) * np.square(local)).sum())
        rows = float(((RESULT + self.row_parts) * np.square(local.sum(-1))).sum())
        return UNIFORM * self.u**2 * (alone + rows + _tied(local, self.as_below)), 0.0

    def _of_late(self, local: Floats) -> Sums:
        """Of weights that are exp(s - lse), each way of storing for itself: known numbers, and rounded as they are."""
        return 0.0, max(abs(float((each * local).sum())) for each in self.late)

    def _bits(self, numbers: Floats, shape: tuple[int, ...]) -> Integers:
        """The numbers as they are stored, one after another."""
        return np.broadcast_to(numbers, shape).astype(self.dtype).view(np.uint16).ravel().astype(np.intp)


def _tied(terms: Floats, stored: Integers) -> float:
    """Sum of the squares of the sums of all terms whose number is stored alike: they share their rounding."""
    return float(np.square(np.bincount(stored, terms.ravel(), minlength=1)).sum())


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


def _added(sums: list[Sums]) -> Sums:
    return sum(variance for variance, _ in sums), sum(systematic for _, systematic in sums)
