"""Counterexamples as text: every number where they fit on a screen, otherwise sizes, seed and the worst element."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attention_conformance.spec.problem import Array
from attention_conformance.tests.harness.explain.reduction import Counterexample, Outcome

MOST_NUMBERS = 40
"""In all arrays together, so that they fit on a screen."""
SHORT = {"query": "q", "key": "k", "value": "v", "attn_mask": "mask"}
"""Short names of arrays; the others keep their names."""


def lines(counterexample: Counterexample, heading: str = "smallest failing case") -> Iterator[str]:
    """A counterexample, a line each."""
    outcome = counterexample.outcome
    yield f"{heading}: {counterexample.recipe.case}"
    if not fits(outcome):
        yield f"  seed {counterexample.recipe.case.seed}, too many numbers for a screen"
    else:
        arrays = {SHORT.get(n, n): a for n, a in outcome.problem.arrays().items()}
        if outcome.expected is not None:
            arrays |= {"expected": outcome.expected.value}
        if outcome.got is not None:
            arrays |= {"got": outcome.got}
        width = max(map(len, arrays))
        yield from (f"  {name:{width}} {shape(array)} = {numbers(array)}" for name, array in arrays.items())
    yield f"  {outcome.comparison.message}"


def fits(outcome: Outcome) -> bool:
    """Whether all its numbers fit on a screen."""
    given = [*outcome.problem.arrays().values(), *([] if outcome.got is None else [outcome.got])]
    expected = 0 if outcome.expected is None else outcome.expected.value.size
    return sum(array.size for array in given) + expected <= MOST_NUMBERS


def shape(array: Array) -> str:
    """Such as (1, 1, 2, 3)."""
    return f"({', '.join(map(str, array.shape))})"


def numbers(array: Array, digits: int = 6) -> str:
    """An array as nested lists of numbers with so many digits at most."""
    if array.ndim == 0:
        return str(array) if array.dtype.kind in "bi" else f"{float(array):.{digits}g}"
    return f"[{', '.join(numbers(np.asarray(part), digits) for part in array)}]"
