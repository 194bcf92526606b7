"""Problems that are solved once for all implementations: the same numbers, and no others."""

from dataclasses import replace

import numpy as np

from attention_conformance.reference.expected import solve
from attention_conformance.reference.solved import LARGE, solved
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.inputs import build

SMALL = Case(seed=5)
CONVENTIONS = Conventions()


def test_the_same_numbers_are_solved_once() -> None:
    one, other = (build(SMALL, "float32").fresh() for _ in range(2))
    assert solved(one, CONVENTIONS, ()).parts is solved(other, CONVENTIONS, ()).parts
    other.query[...] *= 2
    doubled = solved(other, CONVENTIONS, ()).parts["output"].value
    assert np.array_equal(doubled, solve(other, CONVENTIONS).parts["output"].value)
    assert not np.array_equal(doubled, solved(one, CONVENTIONS, ()).parts["output"].value)


def test_more_than_numbers_counts() -> None:
    problem = build(SMALL, "float32")
    for changed in (replace(problem, causal=True), replace(problem, scale=0.3), problem.forward_only()):
        parts, own = solved(changed, CONVENTIONS, ()).parts, solve(changed, CONVENTIONS, returned=()).parts
        assert parts.keys() == own.keys()
        assert np.array_equal(parts["output"].value, own["output"].value)


def test_what_is_worked_out_later_is_of_the_numbers_that_were_solved() -> None:
    problem = build(replace(SMALL, score_std=0.1).sized(num_heads=4, query_length=70, key_length=80), "bfloat16")
    assert problem.num_heads * 70 * 80 > LARGE
    given = problem.fresh()
    late, parts = solved(given, CONVENTIONS, ()), solve(problem, CONVENTIONS, returned=()).parts
    given.query[...] = 0
    bounds = [[each.bound for each in both["output"].aligned] for both in (late.parts, parts)]
    assert bounds[0]
    assert bounds[0] == bounds[1]
    assert np.array_equal(solved(problem, CONVENTIONS, ()).trace.output, parts["output"].value)
