"""Summed: whether sums of many terms are kept in a half type, seen in calls where nothing else can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit_to_explain
from attention_conformance.implementations.api.safe_call import answer
from attention_conformance.reference.bounds.precision import unit_roundoff
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.premises import NO_PREMISES
from attention_conformance.spec.problem import DTYPES, HALF, Array, Problem
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis
from attention_conformance.tests.harness.explain.diagnosis.observation import answered
from attention_conformance.tests.harness.judge.relations import changed

FEW, MANY = 64, 32768
"""Terms of a sum in which roundings of it hardly show, and of one in which they do."""
TERMS = 256
"""Sums of fewer terms are right in a half type, too, as far as its bounds go."""
CLEARLY = 6.0
"""So many roundings of the half type is a sum of many terms off, at least, and twice as much as one of few."""
REPAIR = "Add up in float32, and round once at the end."
SEED = 51


@dataclass(frozen=True)
class Sums:
    """A candidate whose sums are looked at, in one half type."""

    implementation: Implementation
    dtype: str
    device: str

    def problem(self, queries: int, keys: int) -> Problem | None:
        """One sample with scores below 1 and weights that are no powers of two."""
        case = Case(seed=SEED, score_std=0.25).sized(batch=1, num_heads=1, query_length=queries, key_length=keys)
        fitted = fit_to_explain(case, self.implementation.claims)
        if isinstance(fitted, Unsupported) or (fitted.sizes.query_length, fitted.sizes.key_length) != (queries, keys):
            return None
        return build(fitted, self.dtype)

    def off(self, problem: Problem | None, part: Callable[[Problem], Array | None], expected: float) -> float:
        """How far the mean of what is answered is from what is expected, in roundings; NaN where it cannot be seen."""
        made = None if problem is None else part(problem)
        if made is None or not made.size or not np.isfinite(made.astype(np.float64)).all():
            return float("nan")
        apart = np.abs(made.astype(np.float64) / expected - 1.0)
        return float(np.median(apart)) / float(unit_roundoff(self.dtype))

    def output(self, problem: Problem) -> Array | None:
        result, _ = answered(lambda: answer(self.implementation.run, problem.forward_only().fresh(), self.device))
        return None if result is None else result.output

    def of_value(self, problem: Problem) -> Array | None:
        needed = problem.but(needs=("value",))
        result, _ = answered(lambda: answer(self.implementation.run, needed.fresh(), self.device))
        return None if result is None else result.gradients.get("value")


def summed(implementation: Implementation, dtype: str, device: str) -> Diagnosis | None:
    """Which sum a candidate keeps in the half type of its inputs; None where none is off as such sums are."""
    claims = implementation.claims
    if dtype not in HALF or claims.scope is not Scope.OP or claims.premises != NO_PREMISES:
        return None
    sums = Sums(implementation, dtype, device)
    tried = (
        ("exponentials", "keys", _first_weight),
        ("weighted values", "keys", _of_ones),
        *((("gradient of value", "queries", _gradient),) if Feature.GRADIENTS in claims else ()),
    )
    for what, noun, measured in tried:
        few, many = (measured(sums, number) for number in (FEW, MANY))
        if many >= CLEARLY and many >= 2.0 * few:
            share = 100.0 * unit_roundoff(dtype)
            when = f"with many {noun}: it is {share * few:.2g} % off with {FEW}, {share * many:.2g} % with {MANY}"
            return Diagnosis(f"{what} summed over {noun} in {dtype}", 1, 1, agrees=1, repair=REPAIR, when=(when,))
    return None


def _of_ones(sums: Sums, keys: int) -> float:
    """With values of 1 the output is 1, whatever the weights are: sums of both kinds are the same."""
    problem = sums.problem(1, keys)
    problem = problem and changed(problem, value=np.ones_like)
    return sums.off(problem, sums.output, 1.0)


def _first_weight(sums: Sums, keys: int) -> float:
    """With one value that is not 0 the output is its weight, and what is added to it is exact."""
    problem = sums.problem(1, keys)

    def first(value: Array) -> Array:
        return np.broadcast_to((np.arange(value.shape[-2]) == 0)[:, None], value.shape) * 1.0

    def alike(array: Array) -> Array:
        array[..., :1, :] = 0.0
        return array

    problem = problem and changed(problem, value=first, key=alike)
    if problem is None:
        return float("nan")
    wide = problem.widened()
    scores = (wide.query @ wide.key.swapaxes(-1, -2)) * wide.query.shape[-1] ** -0.5
    return sums.off(problem, sums.output, float(1.0 / np.exp(scores).sum()))


def _gradient(sums: Sums, queries: int) -> float:
    """With one key every weight is 1, and the gradient of its value the sum of what comes back."""
    problem = sums.problem(queries, 1)
    if problem is None or problem.cotangent is None:
        return float("nan")
    draw = np.random.default_rng(SEED)
    terms = draw.uniform(0.5, 1.5, queries).astype(DTYPES[sums.dtype]).astype(np.float64)
    problem = changed(problem, cotangent=lambda x: np.broadcast_to(terms[:, None], x.shape))
    return sums.off(problem, sums.of_value, float(terms.sum()))
