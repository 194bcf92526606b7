"""How the reference is compared with the loops, or with any other answer: in units of its own bounds."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attention_conformance.reference.bounds.precision import precision
from attention_conformance.reference.expected import Expected, Solution, solve
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.comparison import error_ratios
from attention_conformance.tests.selftest.reference.arithmetic import COMPLEX, DOUBLE, Arithmetic
from attention_conformance.tests.selftest.reference.family_styles import factors_of
from attention_conformance.tests.selftest.reference.oracle import attention, loss

PARTS = ("output", "weights", "log_sum_exp")
SHARP = replace(precision("float64"), angle=2.0**-52)
"""The reference's own precision: its angles are in float64, where implementations may have them in float32."""
STEP = 1e-30
"""The imaginary step. The truncation error is its square, so what is left are the roundings of the loops."""


def ratio(values: ArrayLike, expected: Expected) -> float:
    """The largest error in units of its bound; infinite where NaN or infinities stand elsewhere."""
    ratios = error_ratios(np.asarray(values, np.float64).reshape(expected.value.shape), expected)
    return float(np.where(np.isnan(ratios), np.inf, ratios).max(initial=0.0))


def op(query: ArrayLike, key: ArrayLike, value: ArrayLike, **options: Any) -> Problem:
    """A problem of (B, H, L, d) lists."""
    q, k, v = (np.asarray(x, np.float64) for x in (query, key, value))
    return Problem(Scope.OP, q, k, v, num_heads=q.shape[1], **options)


def floats(nested: Any) -> Any:
    """Nested lists of any numbers as lists of floats."""
    return [floats(part) for part in nested] if isinstance(nested, list) else float(nested)


def assert_answers_agree(
    problem: Problem,
    conventions: Conventions = Conventions(),
    arithmetic: Arithmetic = DOUBLE,
    limit: float = 1.0,
) -> Solution:
    """The reference's forward pass is that of the loops; returns the former."""
    factors = factors_of(problem)
    solution = solve(problem.forward_only(), conventions, factors, SHARP)
    loops = attention(problem, conventions, arithmetic, factors)
    for name in PARTS:
        assert ratio(floats(getattr(loops, name)), solution.parts[name]) <= limit, name
    weights = np.reshape(floats(loops.weights), solution.parts["weights"].value.shape)
    assert ratio(weights.mean(1), solution.parts["averaged_weights"]) <= limit
    return solution


def assert_gradients_agree(problem: Problem, conventions: Conventions) -> None:
    """The closed-form gradients are the complex-step derivatives of the loops."""
    parts = solve(problem, conventions, factors_of(problem), SHARP).parts
    assert problem.needs
    for name in problem.needs:
        expected = parts[f"gradients.{name}"]
        assert expected.value.shape == problem.arrays()[name].shape
        assert ratio(complex_step(problem, name, conventions), expected) <= 1.0, name


def complex_step(problem: Problem, name: str, conventions: Conventions) -> NDArray[np.float64]:
    """The derivative by each element: the loss's imaginary part where that element has a tiny one."""
    factors, array = factors_of(problem), problem.arrays()[name].astype(np.complex128)
    derivatives = np.zeros(array.shape)
    for place in np.ndindex(*array.shape):
        moved = array.copy()
        moved[place] += 1j * STEP
        derivatives[place] = loss(problem.with_arrays({name: moved}), conventions, COMPLEX, factors).imag / STEP
    return derivatives
