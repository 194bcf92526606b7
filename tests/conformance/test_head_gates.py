"""Chapter 25, head gates: factors for the output of each head, or each of its channels, and what gradients show."""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from attention_conformance.implementations.api.contract import Result
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.cases import Case, MaskKind, Padding, Pattern, Sizes
from attention_conformance.spec.conventions import Conventions, EmptyRow
from attention_conformance.spec.features import Scope
from attention_conformance.spec.gates_and_splits import OutputGates
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.comparison import compare, part_of
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed, take_samples

GATED = Case(seed=321).extended(head_gates=True)
PLAIN = (
    GATED,
    replace(GATED, seed=322, mask=MaskKind.BOOL),
    replace(GATED, seed=323, causal=True).sized(query_length=7),
    replace(GATED, seed=324, padding=Padding.LEFT),
    replace(GATED, seed=325, sizes=Sizes(num_heads=6, num_kv_heads=3)),
    replace(GATED, seed=326).sized(num_heads=1),
    replace(GATED, seed=327).sized(batch=3, query_length=3, key_length=3),
)


WIDE = ("float64", "float32")
"""Dtypes in which the difference of two losses keeps some digits."""
OPEN = -1
"""The number of no head: all gates are 1."""


def _gates(problem: Problem, shut: int) -> Problem:
    """The problem with gates of 1, and 0 for one head."""
    return changed(problem, head_gates=lambda gates: np.where(np.arange(len(gates)) == shut, 0.0, 1.0))


@lru_cache(maxsize=512)
def _solved(case: Case, dtype: str, conventions: Conventions, shut: int, sample: int = -1) -> Mapping[str, Expected]:
    """The reference's answer with these gates, to all samples or to one, shared by all implementations."""
    problem = _gates(build(case, dtype), shut)
    return solve(problem if sample < 0 else _alone(problem, sample), conventions).parts


def _alone(problem: Problem, sample: int) -> Problem:
    return take_samples(problem, np.array([sample]))


def _expected(judge: Judge, case: Case, shut: int, sample: int = -1) -> Mapping[str, Expected]:
    return _solved(case, judge.dtype, judge.conventions, shut, sample)


OPENED = tuple(
    replace(case, seed=case.seed + 60).extended(head_gates=False, output_gates=OutputGates.CHANNEL)
    for case in (*PLAIN, replace(GATED, causal=True).extended(sinks=True))
)
SHARED = tuple(case.extended(output_gates=OutputGates.HEAD) for case in OPENED)
FAR = 1000.0
"""Logits so many times as large leave the range of every dtype's exponentials."""
CLAUSES = table(
    row("head-gates.weights", *PLAIN[:3], parts=("weights",), context="with gates"),
    row("head-gates.sigmoid", *OPENED, context="opened by logits"),
    row("head-gates.sigmoid-shared", *SHARED[:2], *SHARED[4:6], context="one logit for all channels"),
    row("head-gates.sigmoid-weights", *OPENED[:2], parts=("weights",), context="opened by logits"),
    row(
        "head-gates.sigmoid-gradient",
        *(OPENED[0], OPENED[4], SHARED[1]),
        parts=("gradients",),
        context="opened by logits",
    ),
)


@clause("head-gates.factor")
def test_factor(judge: Judge) -> None:
    for case in judge.cases(*PLAIN):
        judge.assert_conforms(case)
    for case in judge.cases(GATED):
        large = changed(judge.problem(case).forward_only(), head_gates=lambda gates: gates * -8)
        expected = judge.expected(case)["output"].only(lambda output: -8.0 * output)
        if judge.claims.scope is Scope.OP:
            judge.assert_answers(case, large, expected, "gates 8 times as large, of the other sign")


@clause("head-gates.sigmoid-far")
def test_far_logits(judge: Judge) -> None:
    for case in judge.cases(OPENED[0], OPENED[1]):
        problem = changed(judge.problem(case), gate_logits=lambda logits: FAR * logits)
        expected = judge.solve(problem).parts
        if (result := judge.answer(case, problem)) is not None:
            parts = ["output", *(f"gradients.{name}" for name in problem.needs)]
            judge.compare(case, result, expected, parts, f"logits {FAR:g} times as large")


@clause("head-gates.open")
def test_open(judge: Judge) -> None:
    for case in judge.cases(GATED, PLAIN[1]):
        problem = _gates(judge.problem(case), OPEN)
        without = judge.expected(case.extended(head_gates=False), gradients=problem.cotangent is not None)
        parts = ["output", *(f"gradients.{name}" for name in problem.needs if name != "head_gates")]
        if (result := judge.answer(case, problem)) is not None:
            judge.compare(case, result, {part: _doubled(without[part]) for part in parts}, parts, "all gates are 1")


def _doubled(expected: Expected) -> Expected:
    """With room for the rounding of a product by 1 that is stored."""
    return replace(expected, bound=2.0 * expected.bound)


@clause("head-gates.closed")
def test_closed(judge: Judge) -> None:
    for case in judge.cases(GATED, PLAIN[1], PLAIN[4]):
        problem = judge.problem(case).forward_only()
        for head in (0, problem.num_heads - 1):
            context = f"the gate of head {head} of {problem.num_heads} is 0"
            if (result := judge.answer(case, _gates(problem, head))) is None:
                continue
            judge.compare(case, result, _expected(judge, case, head), ["output"], context)
            if judge.claims.scope is Scope.OP:
                gone = result.output.ndim == 4 and not result.output[:, head].astype(np.float64).any()
                judge.assert_that(case, gone, f"{context}, and its output is not exactly 0")


@clause("head-gates.rows")
def test_rows(judge: Judge) -> None:
    for case in judge.cases(*PLAIN[:2]):
        problem, head, width = judge.problem(case).forward_only(), 1 % case.sizes.num_heads, case.sizes.d_v

        def without(matrix: Array, rows: slice = slice(head * width, (head + 1) * width)) -> Array:
            matrix[rows] = 0.0
            return matrix

        zeroed = changed(_gates(problem, OPEN), w_o=without)
        bound = _expected(judge, case, head)["output"].bound + judge.solve(zeroed).parts["output"].bound
        if own := judge.own(case, _gates(problem, head), bound):
            judge.assert_answers(case, zeroed, own, f"rows of the output matrix are 0 instead of gate {head}")


@clause("head-gates.gradient")
def test_gradient(judge: Judge) -> None:
    emptied = replace(GATED, seed=328, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW)
    zeros = judge.conventions.empty_row_bool is EmptyRow.ZEROS
    for case in judge.cases(*PLAIN[:2], *PLAIN[4:6], *((emptied,) if zeros else ())):
        judge.assert_conforms(case, "gradients")
    for case in judge.cases(GATED):
        shut, expected = _gates(judge.problem(case), 0), _expected(judge, case, 0)
        if (result := judge.answer(case, shut)) is not None:
            judge.compare(case, result, expected, judge.expanded(("gradients",), shut), "the first gate is 0")


@clause("head-gates.importance", dtypes=WIDE)
def test_importance(judge: Judge) -> None:
    for case in judge.cases(GATED.sized(batch=3), replace(GATED, seed=329, mask=MaskKind.BOOL).sized(batch=3)):
        problem = replace(_gates(judge.problem(case), OPEN), needs=("head_gates",))
        samples = range(case.sizes.batch if judge.allows(case.sized(batch=1)) else 0)
        results = [judge.answer(case, _alone(problem, number)) for number in samples]
        gradients = [each.gradients.get("head_gates") for each in results if each is not None]
        sizes = [np.abs(gradient.astype(np.float64)) for gradient in gradients if gradient is not None]
        parts = [_expected(judge, case, OPEN, number)["gradients.head_gates"] for number in samples]
        if not samples:
            continue
        if len(sizes) < len(samples):
            judge.assert_that(case, False, "no gradient of the gates was returned")
            continue
        mean, bound = np.mean(sizes, 0), np.mean([part.bound for part in parts], 0)
        expected = Expected(np.mean([np.abs(part.value) for part in parts], 0), bound)
        judge.record(case, compare("importance", mean, expected, "float64"), "sample by sample")


@clause("head-gates.ablation", dtypes=WIDE)
def test_ablation(judge: Judge) -> None:
    for case in judge.cases(GATED, PLAIN[1]):
        problem = replace(_gates(judge.problem(case), OPEN), needs=("head_gates",))
        opened = judge.answer(case, problem)
        for head in range(case.sizes.num_heads):
            closed = judge.answer(case, _gates(problem.forward_only(), head))
            if opened is not None and closed is not None:
                _assert_predicted(judge, case, (opened, closed), head)


def _assert_predicted(judge: Judge, case: Case, answers: tuple[Result, Result], head: int) -> None:
    """The losses differ by the gradient, as far as outputs and gradient may be off."""
    parts, without = _expected(judge, case, OPEN), _expected(judge, case, head)["output"]
    cotangent = np.asarray(judge.problem(case).cotangent, np.float64)
    opened, closed = (answer.output.astype(np.float64) for answer in answers)
    gradient = part_of(answers[0], "gradients.head_gates")
    if opened.shape != cotangent.shape or closed.shape != cotangent.shape or gradient is None:
        judge.assert_that(case, False, "outputs or the gradient of the gates have a wrong shape")
        return
    rise = np.array([((closed - opened) * cotangent).sum()])
    off = (np.abs(cotangent) * (parts["output"].bound + without.bound)).sum()
    bound = np.array([off + parts["gradients.head_gates"].bound[head]])
    predicted = -np.asarray(gradient, np.float64)[head : head + 1]
    compared = compare("rise of the loss", rise, Expected(predicted, bound), "float64")
    judge.record(case, compared, f"the gate of head {head} is closed")
