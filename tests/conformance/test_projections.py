"""Chapter 5, projections: the learned maps in front of the heads and behind them."""

import numpy as np

from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.cases import Case
from attention_conformance.spec.problem import Array
from attention_conformance.tests.harness.judge.clause_tests import clause, group, row, table
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed

ORDINARY = (Case(seed=11), Case(seed=12, score_std=4.0).sized(num_heads=2, d_k=6, d_v=5))


def _zeros(array: Array) -> Array:
    return np.zeros_like(array)


def _assert_with(judge: Judge, context: str, *silenced: str) -> None:
    """Conforms with the named parameters set to zero, so that only the others count."""
    for case in judge.cases(*ORDINARY):
        problem = changed(judge.problem(case).forward_only(), **dict.fromkeys(silenced, _zeros))
        expected = solve(problem, judge.conventions).parts["output"]
        judge.assert_answers(case, problem, expected, context)


def _assert_with_and_without(judge: Judge, silenced: tuple[str, ...]) -> None:
    """Conforms with all parameters, and with the named ones set to zero."""
    for case in judge.cases(*ORDINARY):
        judge.assert_conforms(case)
    context, *names = silenced
    _assert_with(judge, context, *names)


WITH_AND_WITHOUT = group(
    _assert_with_and_without,
    {
        "projections.query": ("with the query's projection set to zero, all keys weigh the same", "w_q", "b_q"),
        "projections.key": ("with the key's projection set to zero, all keys weigh the same", "w_k", "b_k"),
        "projections.bias": ("only the biases of the projections are left", "w_q", "w_k", "w_v"),
    },
)


@clause("projections.value")
def test_value(judge: Judge) -> None:
    context = "with equal weights, the output is the mean of the projected values"
    _assert_with(judge, context, "w_q", "b_q", "w_k", "b_k")
    _assert_with(judge, "with the value's projection set to zero, nothing is mixed", "w_v", "b_v")


@clause("projections.output-bias")
def test_output_bias(judge: Judge) -> None:
    for case in judge.cases(*ORDINARY):
        problem = changed(judge.problem(case).forward_only(), w_o=_zeros)
        shape = judge.expected(case)["output"].value.shape
        bias = np.broadcast_to(problem.parameters["b_o"].astype(np.float64), shape)
        expected = Expected(bias, np.zeros_like(bias))
        judge.assert_answers(case, problem, expected, "with W^O set to zero, the output is its bias")


CLAUSES = table(
    row("projections.output", *ORDINARY, context="the joined heads go through the output projection"),
    row(
        "projections.total-width",
        *(Case(seed=13).sized(num_heads=h, d_k=d, d_v=d + 1) for h, d in ((1, 8), (2, 6), (5, 2))),
    ),
)
