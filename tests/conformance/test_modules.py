"""Chapter 26, modules: the questions of the other chapters, asked in other states and under transforms."""

from __future__ import annotations

from dataclasses import replace

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.reference.second_order import second_order
from attention_conformance.spec.cases import Case, Layout, MaskKind, MaskShape, Padding, Pattern
from attention_conformance.spec.features import EmptyRow, Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge, part_of

STATES = ("float64", "float32", "bfloat16")
"""Dtypes in which states and transforms are asked: what they get wrong is seldom the precision."""
ONE = ("float32",)
"""The dtype in which compilers and mixed precision are asked, because they take long or start from it."""
PLAIN = Case(seed=301)
MASKED = Case(seed=302, mask=MaskKind.BOOL).sized(d_v=4)
ADDED = Case(seed=303, mask=MaskKind.FLOAT, mask_shape=MaskShape.SHARED)
CAUSAL = Case(seed=304, causal=True).sized(query_length=7, d_v=4)
PADDED = Case(seed=305, padding=Padding.LEFT)
KINDS = {
    "without a mask": PLAIN,
    "with a boolean mask": MASKED,
    "with a float mask": ADDED,
    "with a causal flag": CAUSAL,
    "with padding": PADDED,
}
EVEN_HEADS = {
    "in self-attention with two heads": PLAIN.as_self_attention().sized(num_heads=2),
    "in self-attention with two heads and a boolean mask": MASKED.as_self_attention().sized(num_heads=2),
}
"""The fast path of torch.nn.MultiheadAttention is taken in self-attention with an even number of heads only."""
LANES = {
    "with a mask for each sample": MASKED,
    "with a mask that all share": replace(MASKED, seed=306, mask_shape=MaskShape.SHARED),
    "with a mask for each head": replace(ADDED, seed=307, mask_shape=MaskShape.HEAD),
    "with a mask of keys": replace(MASKED, seed=308, mask_shape=MaskShape.KEYS),
}


def _twice(case: Case) -> tuple[Case, Case]:
    """With other numbers, too: what a mode drops, one draw may hide."""
    return case, replace(case, seed=case.seed + 50)


def _ask(judge: Judge, mode: Feature, case: Case, context: str, gradients: bool = False, others: bool = True) -> None:
    """Every answer of the mode, or the first, equals the reference; with gradients, if they are claimed."""
    problem = judge.problem(case) if gradients else judge.problem(case).forward_only()
    expected = judge.expected(case, gradients=problem.cotangent is not None)
    for how, result in _answers(judge, mode, case, problem, context)[: None if others else 1]:
        for part in judge.parts():
            for name in problem.needs if part == "gradients" else ("",):
                full = f"gradients.{name}" if name else part
                _record(judge, case, result, full, expected[full], how)


def _record(judge: Judge, case: Case, result: Result, part: str, expected: Expected, how: str) -> None:
    """One check; which parts fail tells mistakes apart."""
    context = how if part == "output" else f"{how}, {part}"
    judge.record(case, compare(part, part_of(result, part), expected, judge.dtype), context)


def _answers(judge: Judge, mode: Feature, case: Case, problem: Problem, context: str) -> list[tuple[str, Result]]:
    """What the mode answers, and how it came to it; nothing after recording that it raised."""
    asking = replace(judge, implementation=replace(judge.implementation, run=judge.implementation.modes[mode]))
    try:
        result = asking.run(problem)
    except CandidateError as error:
        judge.record_error(case, error, context)
        return []
    return [(context, result), *((f"{context}, {how}", other) for how, other in result.others.items())]


@clause("modules.evaluation", dtypes=STATES)
def test_evaluation(judge: Judge) -> None:
    for context, case in KINDS.items():
        for asked in judge.cases(*_twice(case.extended(evaluation=True))):
            parts = judge.parts() if case is PLAIN else ("output",)
            judge.assert_conforms(asked, *parts, context=f"in evaluation mode, {context}")


@clause("modules.training-and-evaluation", dtypes=STATES)
def test_modes_apart(judge: Judge) -> None:
    other = replace(PLAIN, seed=309)
    for first, second in zip(judge.cases(PLAIN, MASKED), judge.cases(other, replace(MASKED, seed=310)), strict=True):
        evaluated = [case.extended(evaluation=True) for case in (first, second)]
        judge.assert_conforms(first, *judge.parts())
        judge.assert_conforms(evaluated[0], context="evaluation after training")
        judge.assert_conforms(second, *judge.parts(), context="training after evaluation, other parameters")
        judge.assert_conforms(evaluated[1], context="evaluation after training, other parameters")
        judge.assert_conforms(evaluated[0], context="evaluation after evaluation, other parameters")
        judge.assert_conforms(first, *judge.parts(), context="training after evaluation")


@clause("modules.saved", dtypes=STATES)
def test_saved(judge: Judge) -> None:
    for case in judge.cases(PLAIN, MASKED):
        _ask(judge, Feature.SAVED, case, "saved and loaded", gradients=True)


@clause("modules.strided-parameters", dtypes=STATES)
def test_strided_parameters(judge: Judge) -> None:
    layouts = (Layout.TRANSPOSED, Layout.SLICED, Layout.OFFSET)
    for case in judge.cases(*(replace(PLAIN, seed=311, layout=layout) for layout in layouts)):
        _ask(judge, Feature.SAVED, case, f"parameters that lie {case.layout} in memory", gradients=True, others=False)


@clause("modules.copied", dtypes=STATES)
def test_copied(judge: Judge) -> None:
    for case in judge.cases(PLAIN, MASKED):
        _ask(judge, Feature.COPIED, case, "a copy", gradients=True)


@clause("modules.unbatched", dtypes=STATES)
def test_unbatched(judge: Judge) -> None:
    for context, case in {**KINDS, **LANES}.items():
        for asked in judge.cases(*_twice(case)):
            _ask(judge, Feature.UNBATCHED, asked, f"without a batch axis, {context}", gradients=case is PLAIN)
    for asked in judge.cases(PLAIN.sized(batch=3, query_length=3, key_length=3)):
        _ask(judge, Feature.UNBATCHED, asked, "without a batch axis, as many tokens as heads")


@clause("modules.autocast", dtypes=ONE)
def test_autocast(judge: Judge) -> None:
    masked = {"with masked scores": replace(MASKED, mask=MaskKind.INFINITE)}
    for context, case in {**KINDS, **masked, "with a mask that all share": LANES["with a mask that all share"]}.items():
        for asked in judge.cases(case):
            _ask_for_halves(judge, asked, f"under autocast, {context}", gradients=case is PLAIN)


def _ask_for_halves(judge: Judge, case: Case, context: str, gradients: bool) -> None:
    """Numbers of bfloat16 in float32, held against the bounds of bfloat16."""
    halves = build(case, "bfloat16")
    halves = replace(halves, needs=judge.problem(case).needs if gradients else ())
    halves = halves if halves.needs else halves.forward_only()
    single = DTYPES[judge.dtype]
    held = {n: a if a.dtype.kind in "bi" else a.astype(single) for n, a in halves.arrays().items()}
    expected = solve(halves, judge.conventions).parts
    for how, result in _answers(judge, Feature.AUTOCAST, case, halves.with_arrays(held), context):
        for part in ("output", *(f"gradients.{name}" for name in halves.needs)):
            _record(judge, case, result, part, expected[part], how)


@clause("modules.vmap", dtypes=STATES)
def test_vmap(judge: Judge) -> None:
    for context, case in {**KINDS, **LANES}.items():
        for asked in judge.cases(case.sized(batch=6)):
            _ask(judge, Feature.VMAP, asked, f"under vmap, {context}", gradients=case is PLAIN)


@clause("modules.compiled", dtypes=ONE)
def test_compiled(judge: Judge) -> None:
    for context, case in {"without a mask": PLAIN, "with a boolean mask": MASKED}.items():
        for asked in judge.cases(case, *(replace(case, seed=case.seed + later) for later in (20, 40))):
            new = "" if asked.seed == case.seed else ", other numbers of the same shapes"
            _ask(judge, Feature.COMPILED, asked, f"compiled, {context}{new}", gradients=case is PLAIN)


@clause("modules.recompiled", dtypes=ONE)
def test_recompiled(judge: Judge) -> None:
    scales = (0.3, 0.9, 1.7) if Feature.SCALE in judge.claims else (None, None, None)
    asked = {
        "": PLAIN,
        "other sizes": PLAIN.sized(batch=3, query_length=6, key_length=9),
        "sizes once more": PLAIN.sized(batch=4, query_length=8, key_length=11),
        "a causal flag": replace(CAUSAL, scale=scales[0]),
        "a causal flag and another scale": replace(CAUSAL, seed=312, scale=scales[1]),
        "a third scale": replace(CAUSAL, seed=314, scale=scales[2]),
        "the first again": replace(PLAIN, seed=313),
    }
    for context, case in asked.items():
        for after in judge.cases(case):
            _ask(judge, Feature.COMPILED, after, f"compiled for another call, {context}" if context else "compiled")


@clause("modules.exported", dtypes=ONE)
def test_exported(judge: Judge) -> None:
    for context, case in {**KINDS, "with a mask that all share": LANES["with a mask that all share"]}.items():
        for asked in judge.cases(case):
            _ask(judge, Feature.EXPORTED, asked, f"exported, {context}")


@clause("modules.no-grad", dtypes=STATES)
def test_no_grad(judge: Judge) -> None:
    heads = {"with one head": PLAIN.sized(num_heads=1), **EVEN_HEADS}
    for context, case in {**KINDS, **heads}.items():
        for asked in judge.cases(*_twice(case)):
            _ask(judge, Feature.NO_GRAD, asked, f"without gradients, {context}")


@clause("modules.double-backward", dtypes=("float64", "float32"))
def test_double_backward(judge: Judge) -> None:
    emptied = replace(MASKED, pattern=Pattern.EMPTY_ROW)
    asked = {**KINDS, "with one head": PLAIN.sized(num_heads=1)}
    if judge.conventions.empty_row_bool is EmptyRow.ZEROS:
        asked["with a row that sees nothing"] = emptied
    for context, case in asked.items():
        for fitted in judge.cases(case):
            _ask_twice(judge, fitted, f"gradients of gradients, {context}")


def _ask_twice(judge: Judge, case: Case, context: str) -> None:
    problem = judge.problem(case)
    expected = second_order(problem, judge.conventions)
    for how, result in _answers(judge, Feature.DOUBLE_BACKWARD, case, problem, context):
        for part, meant in expected.items():
            _record(judge, case, result, part, meant, how)


@clause("modules.one-head")
def test_one_head(judge: Judge) -> None:
    for context, case in {**KINDS, "with a mask for each head": LANES["with a mask for each head"]}.items():
        for asked in judge.cases(case.sized(num_heads=1)):
            judge.assert_conforms(
                asked, *(judge.parts() if case is PLAIN else ("output",)), context=f"one head, {context}"
            )
