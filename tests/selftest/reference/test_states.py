"""Sums in a fixed order over data that round alike: one key at a time, in float32."""

from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.reference.bounds.states import repeats, rises
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case, Scores, Values
from attention_conformance.spec.features import Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.selftest.reference.agreement import ratio

KEYS = 4099
FEW = Case().sized(batch=1, num_heads=1, query_length=1, key_length=KEYS, d_k=4, d_v=1)


def one_by_one(problem: Problem) -> tuple[Array, Array]:
    """Output and log-sum-exp with a running maximum, sum and mixture, all in float32."""
    query, key, value = (x[0, 0] for x in (problem.query, problem.key, problem.value))
    one = np.float32(1.0)
    top, whole, mixed = np.float32(-np.inf), 0.0 * one, 0.0 * one
    for score, v in zip((key @ query[0]) * np.float32(0.5), value[:, 0], strict=True):
        higher = max(top, score)
        earlier, e = np.exp(top - higher), np.exp(score - higher)
        whole, mixed, top = whole * earlier + e, mixed * earlier + e * v, higher
    return np.reshape(mixed / whole, (1, 1, 1, 1)), np.reshape(top + np.log(whole), (1, 1, 1))


def merged_one_by_one(problem: Problem) -> tuple[Array, Array]:
    """The same with a running log-sum-exp, into which each key is merged."""
    query, key, value = (x[0, 0] for x in (problem.query, problem.key, problem.value))
    log, mixed = np.float32(-np.inf), np.float32(0.0)
    for score, v in zip((key @ query[0]) * np.float32(0.5), value[:, 0], strict=True):
        merged = np.logaddexp(log, score)
        mixed, log = mixed * np.exp(log - merged) + np.exp(score - merged) * v, merged
    return np.reshape(mixed, (1, 1, 1, 1)), np.reshape(log, (1, 1, 1))


def rising(step: float) -> Problem:
    rng = np.random.default_rng(0)
    query, key = np.zeros((1, 1, 1, 4)), rng.standard_normal((1, 1, KEYS, 4))
    value = rng.standard_normal((1, 1, KEYS, 1))
    query[..., 0], key[..., 0] = 2.0, step * np.arange(KEYS)
    rows = [x.astype(np.float32) for x in (query, key, value)]
    return Problem(Scope.OP, rows[0], rows[1], rows[2], num_heads=1)


@pytest.mark.parametrize(
    "problem",
    [
        build(replace(FEW, scores=Scores.EQUAL, values=Values.CONSTANT), "float32"),
        build(replace(FEW, scores=Scores.EQUAL), "float32"),
        build(replace(FEW, scores=Scores.RISING), "float32"),
        build(FEW, "float32"),
        rising(3.1e-5),
    ],
    ids=["equal", "equal scores", "steep", "normal", "rising"],
)
def test_one_key_at_a_time_stays_within_the_bounds(problem: Problem) -> None:
    parts, (output, log) = solve(problem.forward_only()).parts, one_by_one(problem)
    assert ratio(output, parts["output"]) < 0.5
    assert ratio(log, parts["log_sum_exp"]) < 0.5


@pytest.mark.parametrize(
    "problem",
    [build(replace(FEW, scores=scores), "float32") for scores in (Scores.NORMAL, Scores.EQUAL, Scores.RISING)],
    ids=["normal", "equal", "steep"],
)
def test_one_key_merged_at_a_time_stays_within_the_bounds(problem: Problem) -> None:
    """A log-sum-exp is rounded with each key that is merged into it, by as much more as it is larger than 1."""
    parts, (output, log) = solve(problem.forward_only()).parts, merged_one_by_one(problem)
    assert ratio(output, parts["output"]) < 0.7
    assert ratio(log, parts["log_sum_exp"]) < 0.7


def test_numbers_that_occur_more_than_once() -> None:
    terms = np.array([[3.0, 1.0, 3.0, 2.0, 3.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    everything = np.ones_like(terms, dtype=np.bool_)
    assert repeats(terms, everything).tolist() == [[9 + 4 + 1], [6]]
    assert repeats(terms, terms != 3.0).tolist() == [[4 + 1], [5]]


def test_rises_in_either_order() -> None:
    scores = np.array([[0.0, 2.0, 1.0, 3.0], [4.0, 3.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    assert rises(scores).tolist() == [[2], [3], [0]]
