"""Chapter 13, effects: a call answers, and leaves the world as it was."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from attention_conformance.implementations.api.global_state import global_state
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.implementations.worker.observer import LATER
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding
from attention_conformance.spec.features import Packing
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.comparison import RETURNED_AS, compare, part_of
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.judging import assert_ended_well
from attention_conformance.tests.report.verdict import FailureKind

VARIED = (
    Case(seed=91),
    Case(seed=92, mask=MaskKind.BOOL),
    Case(seed=93, mask=MaskKind.FLOAT),
    Case(seed=94, causal=True).sized(query_length=7),
    Case(seed=95, causal=True, padding=Padding.RIGHT).sized(query_length=7),
    Case(seed=96, scale=0.3, mask=MaskKind.INFINITE, mask_shape=MaskShape.SHARED),
    Case(seed=98, padding=Padding.RIGHT),
)
MASKS_AND_FLAG = tuple(
    Case(seed=97, mask=kind, causal=True).sized(query_length=7) for kind in (MaskKind.FLOAT, MaskKind.BOOL)
)
"""Which some refuse, and others put together in the caller's mask."""
EXTENDED = (
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
"""One for each feature beyond the core."""


def _assert_none(judge: Judge, case: Case, message: str, names: Sequence[str]) -> None:
    judge.assert_that(case, not names, f"{message} {', '.join(names)}", kind=FailureKind.STATE)


def _same(first: Array | None, second: Array | None) -> bool:
    """Bit by bit, NaN included."""
    if first is None or second is None:
        return first is second
    return first.shape == second.shape and first.dtype == second.dtype and first.tobytes() == second.tobytes()


@clause("effects.inputs")
def test_inputs(judge: Judge) -> None:
    for case in judge.cases(*VARIED, *EXTENDED):
        for problem in judge.problems(case):
            _assert_undisturbed(judge, case, problem)
    for case in judge.cases(*MASKS_AND_FLAG):
        for problem in (judge.problem(case), judge.problem(case).forward_only()):  # in place is refused for gradients
            with suppress(CandidateError):
                judge.run(problem.fresh())
                _assert_undisturbed(judge, case, problem)
    for name in judge.implementation.alternatives:
        along = judge.along(name)
        for case in along.cases(*VARIED[:2]):
            _assert_undisturbed(along, case, judge.problem(case).forward_only(), f", {name},")


def _assert_undisturbed(judge: Judge, case: Case, problem: Problem, how: str = "") -> None:
    passed = problem.fresh()
    if (result := judge.answer(case, passed, as_is=True)) is not None:
        before, after = problem.arrays(), passed.arrays()
        changed = [name for name in before if not _same(before[name], after[name])]
        _assert_none(judge, case, f"the call{how} changed the caller's", changed)
        disturbed = [name for name in result.disturbed if name not in global_state()]
        _assert_none(judge, case, f"the call{how} changed the form, mode or device of", disturbed)


@clause("effects.repeatable")
def test_repeatable(judge: Judge) -> None:
    for case in judge.cases(*VARIED, Case(seed=97).sized(key_length=129, d_k=64)):
        _assert_same_bits(judge, case, "the same call twice gives different bits")
    _assert_none_of_first(judge, "the same call raises an exception once, and answers later", "differing")


def _assert_none_of_first(judge: Judge, message: str, attribute: str) -> None:
    """One check of the calls by which the interface was read, where there is something to report."""
    if exceptions := getattr(judge.implementation, attribute):
        judge.assert_that(Case(), False, message, "; ".join(exceptions), FailureKind.STATE)


def _assert_same_bits(judge: Judge, case: Case, context: str, between: Sequence[Problem] = ()) -> None:
    """The case is answered alike before and after the calls in between."""
    problem = judge.problem(case).forward_only()
    calls = [judge.begun(each.fresh()) for each in (problem, *between, problem)]
    try:
        first = calls[0]()
        first = replace(first, output=first.output.copy())
        *_, second = (call() for call in calls[1:])
    except CandidateError as error:
        judge.record_error(case, error)
        return
    parts = ("output", *RETURNED_AS)
    differ = [part for part in parts if not _same(part_of(first, part), part_of(second, part))]
    judge.assert_that(case, not differ, context, ", ".join(differ), FailureKind.STATE)


@clause("effects.stateless")
def test_stateless(judge: Judge) -> None:
    for case in judge.cases(*VARIED, *EXTENDED):
        other = replace(case, seed=case.seed + 1000)
        others = judge.cases(other, Case(seed=98), Case(seed=99).sized(key_length=4))
        between = [judge.problem(each).forward_only() for each in others]
        _assert_same_bits(judge, case, "calls in between change the answer", between)
        judge.assert_conforms(other, context="a call with the same shapes and new values")


@clause("effects.global-state", last=True)
def test_global_state(judge: Judge) -> None:
    for case in judge.cases(*VARIED[:4]) if judge.observes("changed_state") else ():
        for problem in judge.problems(case):
            try:
                _, changed = judge.observer.changed_state(problem, judge.device, case.seed)
            except CandidateError as error:
                judge.record_error(case, error)
            else:
                _assert_none(judge, case, "the call changed the", changed)
    _assert_none_of_first(judge, "a call leaves by an exception that ends its process", "exits")
    if judge.tally.checks and judge.dtype == judge.dtypes[-1]:
        assert_ended_well(judge)


@clause("effects.threads", dtypes=("float64",), anywhere=True)
def test_threads(judge: Judge) -> None:
    for case in judge.cases(*VARIED[:2]) if judge.observes("at_once") else ():
        problem, other = (judge.problem(replace(case, seed=n)).forward_only() for n in (case.seed, case.seed + 1000))
        later = other.with_arrays(problem.parameters)  # the same module
        try:
            result = judge.observer.at_once(problem, later, judge.device)
        except CandidateError as error:
            judge.record_error(case, error)
            continue
        for answer, given, whose in ((result, problem, "a call"), (result.others.get(LATER), later, "the other call")):
            expected = judge.solve(given).parts["output"]
            output = None if answer is None else answer.output
            judge.record(case, compare("output", output, expected, judge.dtype), f"{whose} of two threads")


@clause("effects.fresh-output")
def test_fresh_output(judge: Judge) -> None:
    single = Case(seed=104).sized(query_length=1, key_length=1)
    others = (Case(seed=101), Case(seed=102).sized(key_length=1), Case(seed=103, mask=MaskKind.BOOL))
    for case in judge.cases(*others, single, single) if judge.observes("overwritten") else ():
        passed = judge.problem(case).forward_only().fresh()
        seeds = (case.seed + later for later in (1000, 2000, 3000))
        later = [judge.problem(replace(case, seed=seed)).forward_only() for seed in seeds]
        try:
            overwritten, shared = judge.observer.overwritten(passed, later, judge.device)
        except CandidateError as error:
            judge.record_error(case, error)
            continue
        message = "a later call, or a thread that goes on, wrote into the output of an earlier one"
        judge.assert_that(case, not overwritten, message, kind=FailureKind.STATE)
        _assert_none(judge, case, "the output shares its memory with", shared)
