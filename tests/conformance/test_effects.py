"""Chapter 13, effects: a call answers, and leaves the world as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.global_state import global_state, kept_global_state, random_states_from
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding
from attention_conformance.spec.extensions import Packing
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.judge import Judge, part_of
from attention_conformance.tests.report.verdict import FailureKind

VARIED = (
    Case(seed=91),
    Case(seed=92, mask=MaskKind.BOOL),
    Case(seed=93, mask=MaskKind.FLOAT),
    Case(seed=94, causal=True).sized(query_length=7),
    Case(seed=95, causal=True, padding=Padding.RIGHT).sized(query_length=7),
    Case(seed=96, scale=0.3, mask=MaskKind.INFINITE, mask_shape=MaskShape.SHARED),
)
FURTHER = (
    Case(seed=191).extended(rotary_base=100.0),
    Case(seed=192).extended(alibi=True),
    Case(seed=193).extended(relative_bias=2),
    Case(seed=194).extended(softcap=2.0),
    Case(seed=195).extended(sinks=True),
    Case(seed=196).extended(head_gates=True),
    Case(seed=197).sized(query_length=7).extended(window_left=2, window_right=1),
    Case(seed=198).extended(packing=Packing.SEGMENTS),
    Case(seed=199).sized(num_heads=6, num_kv_heads=3),
)
"""The same with each of what is asked for beyond the core."""


def _same(first: Array | None, second: Array | None) -> bool:
    """Bit by bit, NaN included."""
    if first is None or second is None:
        return first is second
    return first.shape == second.shape and first.dtype == second.dtype and first.tobytes() == second.tobytes()


@clause("effects.inputs")
def test_inputs(judge: Judge) -> None:
    for case in judge.cases(*VARIED, *FURTHER):
        asked = [judge.problem(case).forward_only()]
        if Feature.GRADIENTS in judge.claims:
            asked.append(judge.problem(case))
        for problem in asked:
            handed = problem.fresh()
            try:
                disturbed = judge.run_with(handed).disturbed
            except CandidateError as error:
                judge.record_error(case, error)
                continue
            before, after = problem.arrays(), handed.arrays()
            spoilt = [name for name in before if not _same(before[name], after[name])]
            judge.assert_that(
                case, not spoilt, f"the call changed the caller's {', '.join(spoilt)}", kind=FailureKind.STATE
            )
            rotated = [name for name in disturbed if name not in global_state()]
            message = f"the call changed the form, mode or place of {', '.join(rotated)}"
            judge.assert_that(case, not rotated, message, kind=FailureKind.STATE)


@clause("effects.repeatable")
def test_repeatable(judge: Judge) -> None:
    for case in judge.cases(*VARIED, Case(seed=97).sized(key_length=129, d_k=64)):
        problem = judge.problem(case).forward_only()
        _assert_bits(
            judge,
            case,
            "the same call twice gives different bits",
            partial(_asked_twice, judge, problem),
        )


def _asked_twice(judge: Judge, problem: Problem) -> tuple[Result, Result]:
    return judge.run(problem), judge.run(problem)


def _assert_bits(judge: Judge, case: Case, context: str, answers: Callable[[], tuple[Result, Result]]) -> None:
    try:
        first, second = answers()
    except CandidateError as error:
        judge.record_error(case, error)
        return
    parts = ("output", "weights", "averaged_weights", "log_sum_exp")
    differ = [part for part in parts if not _same(part_of(first, part), part_of(second, part))]
    judge.assert_that(case, not differ, context, ", ".join(differ), FailureKind.STATE)


@clause("effects.stateless")
def test_no_memory(judge: Judge) -> None:
    for case in judge.cases(*VARIED, *FURTHER):
        other = replace(case, seed=case.seed + 1000)
        between = [
            judge.problem(c).forward_only()
            for c in judge.cases(other, Case(seed=98), Case(seed=99).sized(key_length=4))
        ]
        problem = judge.problem(case).forward_only()

        def around(problem: Problem = problem, between: list[Problem] = between) -> tuple[Result, Result]:
            first = judge.run(problem)
            first = replace(first, output=first.output.copy())
            for question in between:
                judge.run(question)
            return first, judge.run(problem)

        _assert_bits(judge, case, "calls in between change the answer", around)
        judge.assert_conforms(other, context="a call with the same shapes and new values")


@clause("effects.global-state")
def test_global_state(judge: Judge) -> None:
    for case in judge.cases(*VARIED[:4]):
        asked = [judge.problem(case).forward_only()]
        if Feature.GRADIENTS in judge.claims:
            asked.append(judge.problem(case))
        for problem in asked:
            try:
                moved = _moved_by(judge, case, problem)
            except CandidateError as error:
                judge.record_error(case, error)
            else:
                judge.assert_that(case, not moved, f"the call changed the {', '.join(moved)}", kind=FailureKind.STATE)


def _moved_by(judge: Judge, case: Case, problem: Problem) -> list[str]:
    # A candidate that seeds a generator by a number of its own must not find it as it would leave it.
    with kept_global_state(), random_states_from(case.seed):
        before = global_state()
        disturbed = judge.run_unrestored(problem.fresh()).disturbed
        after = global_state()
    return [name for name in before if before[name] != after[name] or name in disturbed]


@clause("effects.fresh-output")
def test_fresh_output(judge: Judge) -> None:
    single = Case(seed=104).sized(query_length=1, key_length=1)
    for case in judge.cases(
        Case(seed=101), Case(seed=102).sized(key_length=1), Case(seed=103, mask=MaskKind.BOOL), single, single
    ):
        problem = judge.problem(case).forward_only()
        handed = problem.fresh()
        try:
            first = judge.run_with(handed).output
            kept = first.copy()
            for later in (1000, 2000, 3000):
                judge.run(judge.problem(replace(case, seed=case.seed + later)).forward_only())
        except CandidateError as error:
            judge.record_error(case, error)
            continue
        message = "a later call wrote into the output of an earlier one"
        judge.assert_that(case, _same(first, kept), message, kind=FailureKind.STATE)
        shared = [name for name, array in handed.arrays().items() if np.shares_memory(array, first)]
        judge.assert_that(
            case, not shared, f"the output shares its memory with {', '.join(shared)}", kind=FailureKind.STATE
        )
