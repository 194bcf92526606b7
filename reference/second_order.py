"""Second derivatives: how the gradients change when all that is differentiated moves in a given direction.

The gradients of chapter gradients are evaluated on dual numbers. The same code, on absolute values and with every
difference made a sum, gives the sizes to which rounding errors are relative; see `bounds.md`, section 13.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.attention import forward_bounds
from attention_conformance.reference.bounds.precision import Precision, gamma, precision
from attention_conformance.reference.expected import Expected
from attention_conformance.reference.gradients import shared, unbroadcast
from attention_conformance.reference.pipeline import Pipeline, Trace, merge_heads, split_heads
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import NOTHING, Scope
from attention_conformance.spec.problem import Array, Problem

INPUTS = ("query", "key", "value")
WEIGHTS = 3
"""Weights that are multiplied in one term at most."""
PROJECTIONS = 7
"""Products with a matrix of parameters, on the way forward and back, that a term goes through."""
SUMS = 7
"""Other sums that it goes through: over the width of a head, keys, queries and tokens."""
STAGES = 24
"""Operations that it goes through; each forms, scales and stores its result."""


@dataclass(frozen=True, eq=False)
class Dual:
    """An array and its derivative along the direction."""

    value: Floats
    along: Floats

    @property
    def mT(self) -> Dual:  # noqa: N802  # as in NumPy
        return Dual(self.value.swapaxes(-1, -2), self.along.swapaxes(-1, -2))

    def __add__(self, other: Dual) -> Dual:
        return Dual(self.value + other.value, self.along + other.along)

    def __mul__(self, other: Dual) -> Dual:
        return Dual(self.value * other.value, self.along * other.value + self.value * other.along)

    def __matmul__(self, other: Dual) -> Dual:
        return Dual(self.value @ other.value, self.along @ other.value + self.value @ other.along)

    def times(self, factor: float | Floats) -> Dual:
        return Dual(self.value * factor, self.along * factor)

    def over_keys(self) -> Dual:
        return Dual(self.value.sum(-1, keepdims=True), self.along.sum(-1, keepdims=True))

    def split(self, num_heads: int) -> Dual:
        return Dual(split_heads(self.value, num_heads), split_heads(self.along, num_heads))

    def merged(self) -> Dual:
        return Dual(merge_heads(self.value), merge_heads(self.along))


def second_order(
    problem: Problem, conventions: Conventions = Conventions(), direction: Mapping[str, Array] | None = None
) -> dict[str, Expected]:
    """Of every needed array, by `gradients.NAME`, the derivative of its gradient along the direction.

    That is d/de of the gradient at x + e u, all needed arrays x moving at once: the product of the loss's matrix of
    second derivatives with u.

    Args:
        problem: with a cotangent, and without extensions.
        conventions: the answers where the field disagrees.
        direction: u, by name; None is the problem's own, see `Problem.direction`.
    """
    assert problem.extension == NOTHING
    wide = problem.widened()
    moving = {n: np.asarray(u, np.float64) for n, u in (direction or problem.direction()).items()}
    trace = Pipeline().run(problem, conventions)
    values = _Differentiation(wide, moving, trace, -1.0).products()
    sizes = _Differentiation(_absolute(wide), {n: np.abs(u) for n, u in moving.items()}, trace, 1.0).products()
    working = precision(problem.dtype, conventions.softmax_precision, conventions.product_precision)
    relative = _relative_error(problem, trace, working)
    return {f"gradients.{n}": Expected(values[n], relative * sizes[n] + working.floor) for n in problem.needs}


def _absolute(problem: Problem) -> Problem:
    held = problem.arrays()
    return problem.with_arrays({n: np.abs(a) for n, a in held.items() if a.dtype.kind == "f"})


@dataclass(frozen=True, eq=False)
class _Differentiation:
    """One pass forward and back on dual numbers.

    Attributes:
        moving: the direction.
        trace: the forward pass, for its weights, which are positive.
        sign: of what is subtracted; +1 where absolute values are added up.
    """

    problem: Problem
    moving: Mapping[str, Floats]
    trace: Trace
    sign: float

    def products(self) -> dict[str, Floats]:
        """The derivatives of the gradients along the direction."""
        heads = {name: self._heads(name) for name in INPUTS}
        weights = self._weights(heads["query"], heads["key"])
        output, cotangent = weights @ heads["value"], self._dual("cotangent")
        back = cotangent if self.problem.scope is Scope.OP else self._into_heads(cotangent)
        d_weights = back @ heads["value"].mT
        d_scores = (weights * (d_weights + (weights * d_weights).over_keys().times(self.sign))).times(self._seen)
        by_role = {
            "query": (d_scores @ heads["key"]).times(self._scale),
            "key": (d_scores.mT @ heads["query"]).times(self._scale),
            "value": weights.mT @ back,
        }
        op = self.problem.scope is Scope.OP
        along = {name: each.along for name, each in by_role.items()} if op else self._of_inputs(by_role)
        if self.problem.attn_mask is not None and self.problem.attn_mask.dtype.kind == "f":
            along["attn_mask"] = unbroadcast(d_scores.along, self.problem.attn_mask.shape)
        if "w_o" in self.problem.parameters:
            along["w_o"] = _over_tokens(output.merged(), cotangent).along
            along["b_o"] = np.zeros(cotangent.value.shape[-1])
        return along

    @property
    def _seen(self) -> Floats:
        """(B, H, Lq, Lk): 0 where a score moves nothing, in rows of a constant answer too."""
        return self.trace.seen.allowed.astype(np.float64)

    @property
    def _scale(self) -> float:
        return self.trace.scale if self.sign < 0.0 else abs(self.trace.scale)

    def _dual(self, name: str) -> Dual:
        """A given array, whose derivative is its part of the direction."""
        held = self.problem.arrays()[name]
        return Dual(held, self.moving.get(name, np.zeros_like(held)))

    def _input(self, name: str) -> Dual:
        """Query, key or value; a shared one moves under its first name."""
        first = next(n for n in INPUTS if getattr(self.problem, n) is getattr(self.problem, name))
        return self._dual(first)

    def _heads(self, name: str) -> Dual:
        given = self._input(name)
        if self.problem.scope is Scope.OP:
            return given
        projected = given @ self._dual(f"w_{name[0]}")
        if f"b_{name[0]}" in self.problem.parameters:
            projected = projected + self._dual(f"b_{name[0]}")
        return projected.split(self.problem.num_heads)

    def _weights(self, query: Dual, key: Dual) -> Dual:
        """The weights, and what they do as the scores move."""
        moved = (query @ key.mT).times(self._scale).along
        if "attn_mask" in self.moving:
            moved = moved + self.moving["attn_mask"]
        moved, p = moved * self._seen, self.trace.weights
        return Dual(p, self._seen * p * (moved + self.sign * (p * moved).sum(-1, keepdims=True)))

    def _into_heads(self, cotangent: Dual) -> Dual:
        """The output's cotangent carried back to the heads."""
        back = cotangent @ self._dual("w_o").mT if "w_o" in self.problem.parameters else cotangent
        return back.split(self.problem.num_heads)

    def _of_inputs(self, by_role: Mapping[str, Dual]) -> dict[str, Floats]:
        along: dict[str, Floats] = {}
        for name, heads in by_role.items():
            projected = heads.merged()
            along[name] = (projected @ self._dual(f"w_{name[0]}").mT).along
            along[f"w_{name[0]}"] = _over_tokens(self._input(name), projected).along
            along[f"b_{name[0]}"] = projected.along.sum((0, 1))
        return shared(self.problem, along)


def _over_tokens(left: Dual, right: Dual) -> Dual:
    """(B, L, x) and (B, L, y) -> (x, y), summed over all tokens."""
    flat = [Dual(*(rows.reshape(-1, rows.shape[-1]) for rows in (each.value, each.along))) for each in (left, right)]
    return flat[0].mT @ flat[1]


def _relative_error(problem: Problem, trace: Trace, working: Precision) -> float:
    """What the factors, sums and roundings of one term come to together."""
    bounds = forward_bounds(problem, trace, working).weights
    visible = trace.seen.allowed & (trace.weights > 0.0)
    of_weight = np.max(bounds[visible] / trace.weights[visible], initial=0.0)
    widths = [array.shape[0] + 1 for name, array in problem.parameters.items() if name.startswith("w_")]
    widths += [array.shape[1] for name, array in problem.parameters.items() if name.startswith("w_")]
    rows = (*trace.query.shape[-2:], *trace.value.shape[-2:], problem.query.shape[0] * trace.query.shape[-2])
    errors = (
        WEIGHTS * np.log1p(of_weight),
        PROJECTIONS * np.log1p(working.growth(max(widths, default=0))),
        SUMS * np.log1p(working.growth(max(rows))),
        np.log1p(gamma(4.0 * STAGES * working.widest)),
    )
    return float(np.expm1(sum(errors)))
