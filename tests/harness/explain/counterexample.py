"""Counterexamples as text: every number where they fit on a screen, otherwise sizes, seed and the worst element."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attention_conformance.spec.problem import Array
from attention_conformance.tests.harness.explain.reduction import Counterexample, Outcome

MOST_NUMBERS = 40
"""In all arrays together, so that they fit on a screen."""
SHORT = {"query": "q", "key": "k", "value": "v", "attn_mask": "mask"}
"""How arrays are called; the others keep their names."""


def lines(found: Counterexample, heading: str = "smallest failing case") -> Iterator[str]:
    """A counterexample, a line each."""
    asked = found.outcome
    yield f"{heading}: {found.recipe.case}"
    if not fits(asked):
        yield f"  seed {found.recipe.case.seed}, too many numbers for a screen"
    else:
        arrays = {SHORT.get(n, n): a for n, a in asked.problem.arrays().items()}
        if asked.expected is not None:
            arrays |= {"expected": asked.expected.value}
        if asked.got is not None:
            arrays |= {"got": asked.got}
        width = max(map(len, arrays))
        yield from (f"  {name:{width}} {shape(array)} = {numbers(array)}" for name, array in arrays.items())
    yield f"  {asked.comparison.message}"


def fits(asked: Outcome) -> bool:
    """Whether all its numbers fit on a screen."""
    given = [*asked.problem.arrays().values(), *([] if asked.got is None else [asked.got])]
    expected = 0 if asked.expected is None else asked.expected.value.size
    return sum(array.size for array in given) + expected <= MOST_NUMBERS


def shape(array: Array) -> str:
    """Such as (1, 1, 2, 3)."""
    return f"({', '.join(map(str, array.shape))})"


def numbers(array: Array, digits: int = 6) -> str:
    """An array as nested lists of numbers with so many digits at most."""
    if array.ndim == 0:
        return str(array) if array.dtype.kind in "bi" else f"{float(array):.{digits}g}"
    return f"[{', '.join(numbers(np.asarray(part), digits) for part in array)}]"
