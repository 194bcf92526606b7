"""Chapter 26, modules: what the other chapters check, in other states and under transforms."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.expected import Expected, solve
from attention_conformance.reference.second_order import second_order
from attention_conformance.spec.cases import Case, Layout, MaskKind, MaskShape, Padding, Pattern
from attention_conformance.spec.conventions import EmptyRow
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import AFTER_AUTOCAST, AUTOCAST, DTYPES, Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed

STATES = ("float64", "float32", "bfloat16")
"""Dtypes in which states and transforms are checked: their mistakes are seldom of the precision."""
ONE = ("float32",)
"""The dtype in which compilers and mixed precision are checked, because they take long or start from it."""
WIDE = "float64"
"""The dtype in which relations of whole modules are checked."""
ROUNDINGS = float(np.finfo(WIDE).eps) ** 0.5
"""A part of the largest number that is more than roundings there, and less than what a token changes."""
INPUTS = ("query", "key", "value")
STEPS = (2.0**-20, 2.0**-6)
"""Steps along a direction: a small one for what bends, a large one for what is computed in float32 inside."""
NO_MASK, ALL_SHARE, EACH_HEAD = "without a mask", "with a mask that all share", "with a mask for each head"
PLAIN = Case(seed=301)
MASKED = Case(seed=302, mask=MaskKind.BOOL).sized(d_v=4)
ADDED = Case(seed=303, mask=MaskKind.FLOAT, mask_shape=MaskShape.SHARED)
CAUSAL = Case(seed=304, causal=True).sized(query_length=7, d_v=4)
PADDED = Case(seed=305, padding=Padding.LEFT)
KINDS = {
    NO_MASK: PLAIN,
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
    ALL_SHARE: replace(MASKED, seed=306, mask_shape=MaskShape.SHARED),
    EACH_HEAD: replace(ADDED, seed=307, mask_shape=MaskShape.HEAD),
    "with a mask of keys": replace(MASKED, seed=308, mask_shape=MaskShape.KEYS),
}


def _twice(case: Case) -> tuple[Case, Case]:
    """With other numbers and one sample, too: one draw may hide what a mode drops, and so may several samples."""
    return case, replace(case, seed=case.seed + 50).sized(batch=1)


def _each(judge: Judge, kinds: Mapping[str, Iterable[Case]]) -> Iterator[tuple[str, Case]]:
    """Each case that the claims allow, with the text that describes its kind."""
    for kind, cases in kinds.items():
        yield from ((kind, case) for case in judge.cases(*cases))


def _assert_mode(
    judge: Judge, mode: Feature, case: Case, context: str, gradients: bool = False, others: bool = True
) -> None:
    """Every answer of the mode, or the first, equals the reference; with gradients, if they are claimed."""
    problem = judge.problem(case) if gradients else judge.problem(case).forward_only()
    expected = judge.expected(case, gradients=problem.cotangent is not None)
    for how, result in _answers(judge, mode, case, problem, context)[: None if others else 1]:
        _compare(judge, case, result, expected, judge.expanded(judge.parts(), problem), how)


def _compare(
    judge: Judge, case: Case, result: Result, expected: Mapping[str, Expected], parts: Iterable[str], how: str
) -> None:
    """One check for each part, named in its context: which parts fail distinguishes mistakes."""
    for part in parts:
        judge.compare(case, result, expected, (part,), how if part == "output" else f"{how}, {part}")


def _answers(judge: Judge, mode: Feature, case: Case, problem: Problem, context: str) -> list[tuple[str, Result]]:
    """The answers of the mode, and how each was computed; none after recording that it raised."""
    other = replace(judge, implementation=replace(judge.implementation, run=judge.implementation.modes[mode]))
    try:
        result = other.run(problem)
    except CandidateError as error:
        judge.record_error(case, error, context)
        return []
    return [(context, result), *((f"{context}, {how}", other) for how, other in result.others.items())]


@clause("modules.evaluation", dtypes=STATES, anywhere=True)
def test_evaluation(judge: Judge) -> None:
    for kind, case in _each(judge, {kind: _twice(case.extended(evaluation=True)) for kind, case in KINDS.items()}):
        parts = judge.parts() if kind == NO_MASK else ("output",)
        judge.assert_conforms(case, *parts, context=f"in evaluation mode, {kind}")


@clause("modules.training-and-evaluation", dtypes=STATES, anywhere=True)
def test_training_and_evaluation(judge: Judge) -> None:
    other = replace(PLAIN, seed=309)
    for first, second in zip(judge.cases(PLAIN, MASKED), judge.cases(other, replace(MASKED, seed=310)), strict=True):
        evaluated = [case.extended(evaluation=True) for case in (first, second)]
        judge.assert_conforms(first, *judge.parts())
        judge.assert_conforms(evaluated[0], context="evaluation after training")
        judge.assert_conforms(second, *judge.parts(), context="training after evaluation, other parameters")
        judge.assert_conforms(evaluated[1], context="evaluation after training, other parameters")
        judge.assert_conforms(evaluated[0], context="evaluation after evaluation, other parameters")
        judge.assert_conforms(first, *judge.parts(), context="training after evaluation")


@clause("modules.saved", dtypes=STATES, anywhere=True)
def test_saved(judge: Judge) -> None:
    for case in judge.cases(PLAIN, MASKED):
        _assert_mode(judge, Feature.SAVED, case, "saved and loaded", gradients=True)


@clause("modules.strided-parameters", dtypes=STATES, anywhere=True)
def test_strided_parameters(judge: Judge) -> None:
    layouts = (Layout.TRANSPOSED, Layout.SLICED, Layout.OFFSET)
    for case in judge.cases(*(replace(PLAIN, seed=311, layout=layout) for layout in layouts)):
        _assert_mode(
            judge, Feature.SAVED, case, f"parameters that lie {case.layout} in memory", gradients=True, others=False
        )


@clause("modules.copied", dtypes=STATES, anywhere=True)
def test_copied(judge: Judge) -> None:
    for case in judge.cases(PLAIN, MASKED):
        _assert_mode(judge, Feature.COPIED, case, "a copy", gradients=True)


@clause("modules.unbatched", dtypes=STATES, anywhere=True)
def test_unbatched(judge: Judge) -> None:
    kinds = {kind: _twice(case) for kind, case in {**KINDS, **LANES}.items()}
    alike = {"as many tokens as heads": (PLAIN.sized(batch=3, query_length=3, key_length=3),)}
    for kind, case in _each(judge, {**kinds, **alike}):
        _assert_mode(judge, Feature.UNBATCHED, case, f"without a batch axis, {kind}", gradients=kind == NO_MASK)


@clause("modules.autocast", dtypes=ONE)
def test_autocast(judge: Judge) -> None:
    kinds = {**KINDS, "with masked scores": replace(MASKED, mask=MaskKind.INFINITE), ALL_SHARE: LANES[ALL_SHARE]}
    for kind, case in _each(judge, {kind: (case,) for kind, case in kinds.items()}):
        _assert_half_precision(judge, case, f"under autocast, {kind}", gradients=kind == NO_MASK)


def _assert_half_precision(judge: Judge, case: Case, context: str, gradients: bool) -> None:
    """Numbers of the half type in float32, compared within its bounds; the next call within those of float32."""
    halves = build(case, AUTOCAST)
    halves = replace(halves, needs=judge.problem(case).needs if gradients else ())
    halves = halves if halves.needs else halves.forward_only()
    single = DTYPES[judge.dtype]
    arrays = {n: a if a.dtype.kind in "bi" else a.astype(single) for n, a in halves.arrays().items()}
    problem = halves.with_arrays(arrays)
    rough, exact = (solve(each, judge.conventions).parts for each in (halves, problem))
    for how, result in _answers(judge, Feature.AUTOCAST, case, problem, context):
        expected = exact if how == f"{context}, {AFTER_AUTOCAST}" else rough
        _compare(judge, case, result, expected, judge.expanded(("output", "gradients"), halves), how)


@clause("modules.vmap", dtypes=STATES, anywhere=True)
def test_vmap(judge: Judge) -> None:
    for kind, case in _each(judge, {kind: (case.sized(batch=6),) for kind, case in {**KINDS, **LANES}.items()}):
        _assert_mode(judge, Feature.VMAP, case, f"under vmap, {kind}", gradients=kind == NO_MASK)


@clause("modules.compiled", dtypes=ONE, anywhere=True)
def test_compiled(judge: Judge) -> None:
    kinds = {NO_MASK: PLAIN, "with a boolean mask": MASKED}
    for kind, case in _each(
        judge, {k: (c, *(replace(c, seed=c.seed + n) for n in (20, 40))) for k, c in kinds.items()}
    ):
        new = "" if case.seed == kinds[kind].seed else ", other numbers of the same shapes"
        _assert_mode(judge, Feature.COMPILED, case, f"compiled, {kind}{new}", gradients=kind == NO_MASK)


@clause("modules.recompiled", dtypes=ONE, anywhere=True)
def test_recompiled(judge: Judge) -> None:
    scales = (0.3, 0.9, 1.7) if Feature.SCALE in judge.claims else (None, None, None)
    another = "compiled for another call, "
    calls = {
        "compiled": PLAIN,
        another + "other sizes": PLAIN.sized(batch=3, query_length=6, key_length=9),
        another + "sizes once more": PLAIN.sized(batch=4, query_length=8, key_length=11),
        another + "a causal flag": replace(CAUSAL, scale=scales[0]),
        another + "a causal flag and another scale": replace(CAUSAL, seed=312, scale=scales[1]),
        another + "a third scale": replace(CAUSAL, seed=314, scale=scales[2]),
        another + "the first again": replace(PLAIN, seed=313),
    }
    for context, case in _each(judge, {context: (case,) for context, case in calls.items()}):
        _assert_mode(judge, Feature.COMPILED, case, context)


@clause("modules.exported", dtypes=ONE, anywhere=True)
def test_exported(judge: Judge) -> None:
    for kind, case in _each(judge, {k: (c,) for k, c in {**KINDS, ALL_SHARE: LANES[ALL_SHARE]}.items()}):
        _assert_mode(judge, Feature.EXPORTED, case, f"exported, {kind}")


@clause("modules.no-grad", dtypes=STATES, anywhere=True)
def test_no_grad(judge: Judge) -> None:
    kinds = {**KINDS, "with one head": PLAIN.sized(num_heads=1), **EVEN_HEADS}
    for kind, case in _each(judge, {kind: _twice(case) for kind, case in kinds.items()}):
        _assert_mode(judge, Feature.NO_GRAD, case, f"without gradients, {kind}")


@clause("modules.double-backward", dtypes=("float64", "float32"))
def test_double_backward(judge: Judge) -> None:
    kinds = {**KINDS, "with one head": PLAIN.sized(num_heads=1)}
    if judge.conventions.empty_row_bool is EmptyRow.ZEROS:
        kinds["with a row that sees nothing"] = replace(MASKED, pattern=Pattern.EMPTY_ROW)
    for kind, case in _each(judge, {kind: (case,) for kind, case in kinds.items()}):
        problem = judge.problem(case)
        expected, context = second_order(problem, judge.conventions), f"gradients of gradients, {kind}"
        for how, result in _answers(judge, Feature.DOUBLE_BACKWARD, case, problem, context):
            _compare(judge, case, result, expected, expected, how)


@clause("modules.as-built", dtypes=("float64", "float32"), anywhere=True)
def test_as_built(judge: Judge) -> None:
    """In float64, where rounding is far below what a mistake changes; a deviation is measured by coarser inputs."""
    plain = Case(seed=315).sized(batch=3, query_length=6, key_length=6)
    for case in judge.cases(plain, replace(plain, seed=316, causal=True)):
        problem = build(case, WIDE).forward_only()
        answers = _answers(judge, Feature.AS_BUILT, case, problem, "with all its parts")
        coarse = _answers(judge, Feature.AS_BUILT, case, _coarse(problem), "with all its parts")
        if answers and coarse:
            _assert_alike(judge, case, *answers[0], coarse[0][1])
            if Feature.GRADIENTS in judge.claims or not answers[1:]:  # which is there for its gradients
                _assert_slopes(judge, case)


def _assert_alike(judge: Judge, case: Case, context: str, result: Result, coarse: Result) -> None:
    """The other outputs of a module are its output, and so are those of each way in which it is built otherwise."""
    least = ROUNDINGS * np.abs(result.output).max(initial=0.0)  # inputs may change nothing, as where no key is seen
    moved = np.full(result.output.shape, np.abs(result.output - coarse.output).max(initial=least))
    for how, other in result.others.items():
        if other.others:
            _assert_alike(judge, case, f"{context}, {how}", other, coarse.others[how])
        else:
            found = compare("output", other.output, Expected(result.output, moved), WIDE)
            judge.record(case, found, f"{context}, {how}")


def _coarse(problem: Problem) -> Problem:
    """The problem with inputs that are rounded to float16."""
    return changed(problem, **dict.fromkeys(INPUTS, lambda array: array.astype(np.float16)))


def _assert_slopes(judge: Judge, case: Case) -> None:
    """Along one direction, the gradients of inputs are the slope of the output, seen in a small or in a large step."""
    whole = build(case, WIDE)
    problem = whole.but(needs=tuple(name for name in whole.needs if name in INPUTS))
    results = [_answers(judge, Feature.AS_BUILT, case, p, "its gradients") for p in (problem, _coarse(problem))]
    if not all(results):
        return
    found, coarse = (answers[0][1].gradients for answers in results)
    draw = np.random.default_rng(case.seed)
    along = {name: draw.standard_normal(array.shape) for name, array in found.items()}
    slope = sum(float((array * along[name]).sum()) for name, array in found.items())
    moved = sum(float(np.linalg.norm(found[n] - coarse[n]) * np.linalg.norm(along[n])) for n in found)
    steps = [_slope(judge, case, problem, along, size) for size in STEPS]
    near = any(step is not None and abs(step - slope) <= moved for step in steps)
    message = "its gradients are not the slopes of its output"
    rises = " to ".join("nothing" if step is None else f"{step:g}" for step in steps)
    judge.assert_that(case, near, message, f"{slope:g} along a direction in which it rises by {rises}")


def _slope(judge: Judge, case: Case, problem: Problem, along: Mapping[str, Array], size: float) -> float | None:
    """How much the sum of output times cotangent rises along a direction, a step of this size to either side."""
    sums = []
    for sign in (1.0, -1.0):
        moved = problem.with_arrays({n: getattr(problem, n) + sign * size * step for n, step in along.items()})
        # With a cotangent and no need the output is answered alone, without all that has to be the same.
        answers = _answers(judge, Feature.AS_BUILT, case, moved.but(needs=()), "a step away")
        if not answers:
            return None
        sums.append(float((answers[0][1].output * problem.cotangent).sum()))
    return (sums[0] - sums[1]) / (2.0 * size)


@clause("modules.one-head")
def test_one_head(judge: Judge) -> None:
    kinds = {**KINDS, EACH_HEAD: LANES[EACH_HEAD]}
    for kind, case in _each(judge, {kind: (case.sized(num_heads=1),) for kind, case in kinds.items()}):
        judge.assert_conforms(case, *(judge.parts() if kind == NO_MASK else ("output",)), context=f"one head, {kind}")
