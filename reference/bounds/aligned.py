"""Aligned bounds: how far the error of a whole array may point in one direction, where it is computed in a half type.

The derivation and its assumptions are in `aligned.md` next to this file; the names below are its symbols, written out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from typing import TypeAlias

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.attention import NEAR, ForwardBounds, forward_bounds, score_bounds
from attention_conformance.reference.bounds.gradients import gradient_bounds
from attention_conformance.reference.bounds.noise import ELEMENT, UNIFORM, Noise, Sums, of_kinds, of_samples
from attention_conformance.reference.bounds.precision import Precision, unit_roundoff
from attention_conformance.reference.gradients import Backward, backward, cotangent_of_heads
from attention_conformance.reference.pipeline import Trace
from attention_conformance.reference.stages import gather, repeat_kv
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import HALF, Problem

FALSE_ALARM = 1e-9
"""The probability, for each check, that independent roundings of a correct answer exceed the bound."""
ROUNDED = ("alibi_slopes", "relative_bias", "bucketed_bias", "key_scale", "value_scale", "w_uk")
"""Arrays that are added to the scores, or multiply keys and values or make them, and have roundings of their own."""

Directions: TypeAlias = Mapping[str, Mapping[str, Floats]]
"""By part of the answer, and by what an error in it means, an array like the part."""


@dataclass(frozen=True, eq=False)
class Aligned:
    """A direction, and how large the inner product of a correct answer's error with it may be.

    Attributes:
        name: what an error in the direction means, such as "its size".
        direction: shaped like the array.
        least: what the roundings of the result alone would allow; `bound` allows more.
        work_out: finds `bound`, which takes longer than everything else that is known of an answer, or less of it
            where that is as much as it is given.
    """

    name: str
    direction: Floats
    least: float
    work_out: Callable[[float], float]

    @cached_property
    def bound(self) -> float:
        """Of |sum(error * direction)|."""
        return self.work_out(math.inf)

    def ratio(self, error: Floats) -> float:
        """The inner product in units of its bound."""
        return self._product(error) / self.bound

    def certainly_within(self, share: float, error: Floats) -> bool:
        """Whether the ratio is at most this, for which no more of the bound is worked out than is needed."""
        product = self._product(error)
        return product <= share * self.least or (share > 0.0 and product <= share * self.work_out(product / share))

    def _product(self, error: Floats) -> float:
        return abs(float((error * self.direction).sum()))

    @property
    def limit(self) -> float:
        """The largest coefficient of the direction in a correct answer's error."""
        return self.bound / float(np.square(self.direction).sum())

    def share(self, error: Floats) -> float:
        """The coefficient of the direction in the error: 0.02 where the answer has moved by 2 % of it."""
        return float((error * self.direction).sum()) / float((self.direction**2).sum())


Traced: TypeAlias = Callable[[Problem], Trace]
"""Solves a problem anew: its trace takes too much memory to be kept until a bound is worked out."""


def aligned_bounds(
    blocks: Sequence[Problem],
    directions: Sequence[Directions],
    values: Mapping[str, Floats],
    working: Precision,
    traced: Traced,
) -> dict[str, tuple[Aligned, ...]]:
    """The aligned bounds of the output and of the gradients of query, key and value; none where no analysis holds.

    Args:
        blocks: a problem in parts of some samples each, of which none is a stack of several.
        directions: of each.
        values: the expected values of the whole problem, by the names of the answer's parts.
        working: the precision of the whole problem.
        traced: what solves one of the blocks.
    """
    if not all(directions):
        return {}
    joined = {part: _joined([each[part] for each in directions]) for part in directions[0]}
    worked_out = _WorkedOut(blocks, working, traced, joined)
    dtype, heads = blocks[0].dtype, blocks[0].num_heads
    return {
        part: tuple(
            Aligned(name, along, _least(heads, along, values[part], dtype), partial(worked_out.bound, part, name))
            for name, along in several.items()
        )
        for part, several in joined.items()
    }


def _joined(blocks: Sequence[Mapping[str, Floats]]) -> dict[str, Floats]:
    """The directions of a part over all samples that are not zero."""
    whole = {name: np.concatenate([each[name] for each in blocks]) for name in blocks[0]}
    return {name: along for name, along in whole.items() if along.any()}


def directions(
    problem: Problem, trace: Trace, step: Backward | None, forward: ForwardBounds, values: Mapping[str, Floats]
) -> Directions:
    """Those of a block, given its expected values; none where no analysis holds."""
    if not _applies(problem, trace, forward):
        return {}
    return {part: dict(_named_directions(trace, step, part, values[part])) for part in _parts(problem)}


def _parts(problem: Problem) -> Iterator[str]:
    yield "output"
    if problem.cotangent is not None:
        yield from (f"gradients.{name}" for name in ("query", "key", "value") if name in problem.needs)


def _named_directions(trace: Trace, step: Backward | None, part: str, value: Floats) -> Iterator[tuple[str, Floats]]:
    """The value itself, what a factor of the scores changes, and what D takes away from a gradient."""
    yield "its size", value
    if step is None or part == "output":
        products = np.where(trace.seen.allowed, trace.products, 0.0)
        moved = trace.weights * (products - (trace.weights * products).sum(-1, keepdims=True))
        yield "a change of the scale", moved @ trace.value
    elif part != "gradients.value":
        yield "a change of D", _by_centre(trace, step, part, value)


def _by_centre(trace: Trace, step: Backward, part: str, gradient: Floats) -> Floats:
    """The sum over keys, or queries, of the weights times D: what a factor of D would change."""
    if part == "gradients.query":
        return np.asarray(trace.scale * step.centre * (trace.weights @ trace.key))
    by_head = trace.scale * (trace.weights.swapaxes(-1, -2) @ (step.centre * trace.query))
    return gather(by_head, gradient.shape[-3], trace.order)


def _least(num_heads: int, direction: Floats, value: Floats, dtype: str) -> float:
    """The bound with nothing but `of_result`, and of that without the parts and what is stored alike."""
    heads = num_heads // value.shape[-3]  # the squares of a sum over them are at most so many times theirs
    squares = float(np.square(direction * value).sum()) / heads
    return _chance(UNIFORM * unit_roundoff(dtype) ** 2 * ELEMENT * squares)


def _chance(variance: float) -> float:
    """Hoeffding's inequality."""
    return math.sqrt(2.0 * math.log(2.0 / FALSE_ALARM) * variance)


@dataclass(frozen=True, eq=False)
class _WorkedOut:
    """The bound of each direction: what independent roundings seldom exceed, and what is not left to chance.

    Attributes:
        blocks, working, traced: see `aligned_bounds`.
        directions: of the whole problem.
        done: what the roundings do to a direction of a part in each of the first blocks.
    """

    blocks: Sequence[Problem]
    working: Precision
    traced: Traced
    directions: Directions
    done: dict[tuple[str, str], list[Sums]] = field(default_factory=dict)

    def bound(self, part: str, name: str, enough: float) -> float:
        """That of one direction, or less where the samples of the first blocks alone allow so much of an error."""
        done = self.done.setdefault((part, name), [])
        while len(done) < len(self.blocks):
            if done and (least := _least_of(of_samples(done))) >= enough:
                return least
            done.append(self._sums(len(done), part, name))
        return _bound(of_samples(done))

    def _sums(self, number: int, part: str, name: str) -> Sums:
        start = sum(each.batch for each in self.blocks[:number])
        own = slice(start, start + self.blocks[number].batch)
        return _solved(self, number).sums(part, self.directions[part][name][own])


@lru_cache(maxsize=1)
def _solved(worked_out: _WorkedOut, number: int) -> _Solved:
    """One block, the last: several of its directions are often needed one after another."""
    block = worked_out.blocks[number]
    return _Solved(block, worked_out.traced(block), worked_out.working)


def _bound(sums: Sums) -> float:
    return _chance(sums.variance) + sums.certain


def _least_of(sums: Sums) -> float:
    """Less than the bound over more samples: theirs may end what is added up before it is squared or loses its sign."""
    return _chance(sums.chance) + sums.systematic


@dataclass(frozen=True, eq=False)
class _Solved:
    """A block, and what its roundings do to a direction of a part of its answer."""

    problem: Problem
    trace: Trace
    working: Precision

    def sums(self, part: str, direction: Floats) -> Sums:
        """Given the samples of the direction that are in the block."""
        if part == "output":
            return _of_output(self._noise, direction, self._exact.output)
        name = part.removeprefix("gradients.")
        return _of_gradient(self._noise, self._step, name, direction, self._errors[name])

    @cached_property
    def _noise(self) -> Noise:
        return Noise(self.trace, score_bounds(self.problem, self.trace, self.working), self.working)

    @cached_property
    def _exact(self) -> ForwardBounds:
        return forward_bounds(self.problem, self.trace, _in_single(self.working))

    @cached_property
    def _step(self) -> Backward:
        return backward(self.trace, cotangent_of_heads(self.problem))

    @cached_property
    def _errors(self) -> dict[str, Floats]:
        return gradient_bounds(self.problem, self.trace, self._step, self._exact, _in_single(self.working))


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


def _of_output(noise: Noise, direction: Floats, exact: Floats) -> Sums:
    trace = noise.trace
    sums = noise.of_weights(direction @ trace.value.swapaxes(-1, -2))
    return of_kinds([sums, noise.of_result(direction, trace.mixed, noise.parts), _of_single(direction, exact)])


def _of_gradient(noise: Noise, step: Backward, name: str, direction: Floats, exact: Floats) -> Sums:
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
    return of_kinds([sums, noise.of_result(wide, result, parts), _of_single(direction, exact)])


def _squares(weights: Floats, rows: Floats) -> Floats:
    return np.asarray(np.square(weights).swapaxes(-1, -2) @ np.square(rows))


def _of_single(direction: Floats, exact: Floats) -> Sums:
    """What is not left to chance: every bound in float32."""
    return Sums(systematic=float((np.abs(direction) * exact).sum()))
