"""Solved problems that are kept: one that is made from a case by a clause is given to each implementation in turn."""

from dataclasses import dataclass, field
from functools import lru_cache, partial
from hashlib import blake2b

from attention_conformance.reference.blocks import scores_of
from attention_conformance.reference.expected import Solution, solve, traced
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.problem import Problem

KEPT = 128
"""Problems: clauses come one after another, each for all implementations, and have fewer in all dtypes."""
LARGE = 4_000
"""Scores from which on the trace, which takes several times their memory, is worked out anew where it is needed."""
PLAIN = ("scope", "num_heads", "causal", "scale", "needs", "sharing", "layout", "extension")
"""The fields of a problem that are no arrays."""


@dataclass(frozen=True)
class _Given:
    """A problem, which is the same as another one where all its numbers are."""

    digest: bytes
    problem: Problem = field(compare=False)


def solved(problem: Problem, conventions: Conventions, returned: tuple[str, ...]) -> Solution:
    """What `solve` gives, or gave for the same numbers before."""
    known = _solved(_Given(_digest(problem), problem), conventions, returned)
    if scores_of(problem) <= LARGE:
        return known
    return Solution(known.parts, partial(traced, conventions, problem))


@lru_cache(maxsize=KEPT)
def _solved(given: _Given, conventions: Conventions, returned: tuple[str, ...]) -> Solution:
    """Of a copy: bounds may be worked out later, and a call may change the arrays of the problem."""
    problem = given.problem
    own = problem.with_arrays({name: array.copy("K") for name, array in problem.arrays().items()})
    solution = solve(own, conventions, returned=returned)
    return solution if scores_of(problem) <= LARGE else Solution(solution.parts, partial(traced, conventions, own))


def _digest(problem: Problem) -> bytes:
    made = blake2b(repr([getattr(problem, name) for name in PLAIN]).encode(), digest_size=16)
    for name, array in problem.arrays().items():
        made.update(f"{name} {array.dtype.name} {array.shape} {array.strides}".encode())
        made.update(array.tobytes())
    return made.digest()
