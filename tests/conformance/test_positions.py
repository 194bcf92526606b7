"""Chapter 21, positions: sinusoids, rotary embeddings, ALiBi and its slopes, relative biases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.encodings import alibi_slopes, sinusoids
from attention_conformance.reference.expected import Expected
from attention_conformance.reference.pipeline import Pipeline
from attention_conformance.spec.cases import Case, MaskKind, Padding, Sizes
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed, taking

SQUARE = Case().sized(query_length=7, key_length=7)
ALIKE = Case().sized(num_heads=5, query_length=5, key_length=5)
"""As many heads as queries and keys: a slope or a table laid along the wrong axis fits."""
STARTS = ((1, 6), (3, 4), (5, 1))
"""Queries, and where the first one stands before 7 keys."""
FAR = (2003, 4099)
"""Positions that no half type holds: bfloat16 ends at 256, float16 at 2048."""
POWERS = (1, 2, 4, 8, 16, 64)
OTHERS = (3, 5, 6, 7, 12, 20, 40, 71, 112)


@clause("positions.sinusoids")
def test_sinusoids(judge: Judge) -> None:
    for length, width in ((1, 2), (7, 6), (50, 4), (13, 16), (2500, 8)):
        _assert_sinusoids(judge, length, width)


def _assert_sinusoids(judge: Judge, length: int, width: int) -> None:
    order = judge.conventions.sinusoid_order
    _assert_function(judge, "sinusoids", (length, width), lambda dtype: sinusoids(length, width, order, dtype))


def _assert_function(
    judge: Judge, name: str, arguments: tuple[int, ...], expected: Callable[[str], Expected]
) -> Array | None:
    """Calls a plain function, and holds what it answers against what is expected in the dtype that it chose."""
    told = f"{name}({', '.join(map(str, arguments))})"
    try:
        got = judge.call(name, *arguments)
    except CandidateError as error:
        judge.record_error(Case(), error, told)
        return None
    judge.record(Case(), compare(told, got, expected(got.dtype.name), got.dtype.name))
    return got


@clause("positions.sinusoids-length")
def test_sinusoids_length(judge: Judge) -> None:
    order, width = judge.conventions.sinusoid_order, 6
    try:
        whole = judge.call("sinusoids", 203, width)
    except CandidateError as error:
        judge.record_error(Case(), error, f"sinusoids(203, {width})")
        return
    for length in (1, 5, 41):
        bound = 2.0 * sinusoids(length, width, order, whole.dtype.name).bound
        beginning = Expected(whole[:length].astype(np.float64), bound)
        _assert_function(judge, "sinusoids", (length, width), lambda dtype, start=beginning: start)  # type: ignore[misc]


@clause("positions.rotary")
def test_rotary(judge: Judge) -> None:
    rotated = SQUARE.extended(rotary_base=10000.0)
    quick = SQUARE.extended(rotary_base=10.0)
    cases = (
        rotated,
        quick.sized(d_k=8),
        quick.sized(d_k=2),
        quick.sized(d_k=6, query_length=17, key_length=17),
        replace(rotated, causal=True, seed=1),
        replace(quick, mask=MaskKind.FLOAT, seed=2),
        replace(quick, sizes=Sizes(num_heads=6, num_kv_heads=3, query_length=7, key_length=7)),
    )
    for case in judge.cases(*cases):
        judge.assert_conforms(case)


@clause("positions.rotary-norm")
def test_rotary_norm(judge: Judge) -> None:
    for case in judge.cases(SQUARE.extended(rotary_base=50.0), SQUARE.sized(d_k=6).extended(rotary_base=10000.0)):
        for place in (1, case.sizes.key_length - 1):
            _assert_as_if_unturned(judge, case, place)


def _assert_as_if_unturned(judge: Judge, case: Case, place: int) -> None:
    """All keys are 0, whichever way they are turned, but the one at the query's own position."""

    def alone(rows: Array) -> Array:
        kept = rows[..., place, :].copy()
        rows[:] = 0
        rows[..., place, :] = kept
        return rows

    problem = changed(judge.problem(case).forward_only(), key=alone)
    unturned = replace(problem, extension=replace(problem.extension, rotary_base=None))
    value, bound = Pipeline().run(unturned, judge.conventions).output, judge.solve(problem).parts["output"].bound
    row = taking(np.array([place]), -2)
    context = f"only key {place} is not 0, and query {place} stands at its position"
    judge.assert_answers(case, problem, Expected(row(value), row(bound)), context, of=row)


@clause("positions.rotary-shift")
def test_rotary_shift(judge: Judge) -> None:
    rotated = Case().extended(rotary_base=20.0, query_start=2)
    for case in judge.cases(rotated, rotated.sized(query_length=1, d_k=6)):
        for steps in (1, 40):
            _assert_only_distance_counts(judge, case, steps)


def _assert_only_distance_counts(judge: Judge, case: Case, steps: int) -> None:
    """The candidate's own answer, before and after all have moved."""
    before = judge.problem(case).forward_only()
    later = _moved(before, steps)
    bound = judge.expected(case)["output"].bound + judge.solve(later).parts["output"].bound
    output = judge.own(case, before)
    if output is None:
        return
    if output.shape != bound.shape:
        judge.assert_that(case, False, f"output has shape {output.shape}, expected {bound.shape}")
        return
    context = f"all stand {steps} positions later, after masked keys"
    judge.assert_answers(case, later, Expected(output.astype(np.float64), bound), context)


def _moved(problem: Problem, steps: int) -> Problem:
    """With so many masked keys before the others, and the queries so much later."""

    def after_others(rows: Array) -> Array:
        others = np.resize(rows[..., ::-1, :], (*rows.shape[:-2], steps, rows.shape[-1]))
        return np.concatenate([others, rows], axis=-2)

    asked = problem.extension
    seen = np.arange(steps + problem.key.shape[-2]) >= steps
    extension = replace(asked, query_start=(asked.query_start or 0) + steps)
    later = changed(problem, key=after_others, value=after_others)
    return replace(later, attn_mask=np.broadcast_to(seen, (1, 1, 1, len(seen))).copy(), extension=extension)


@clause("positions.rotary-start")
def test_rotary_start(judge: Judge) -> None:
    for case in judge.cases(*_starting(SQUARE.extended(rotary_base=20.0))):
        judge.assert_conforms(case)


def _starting(case: Case) -> list[Case]:
    """The case with queries that start later, and one that continues a sequence under the causal flag."""
    later = [case.sized(query_length=queries).extended(query_start=start) for queries, start in STARTS]
    return [*later, replace(later[1], causal=True)]


@clause("positions.rotary-far")
def test_rotary_far(judge: Judge) -> None:
    slow, quick = (Case().extended(rotary_base=base) for base in (10000.0, 10.0))
    far = [case.extended(query_start=start) for case in (slow, quick) for start in FAR]
    long = quick.sized(batch=1, num_heads=1, query_length=3, key_length=2099).extended(query_start=2097)
    for case in judge.cases(*far, replace(long, score_std=4.0)):
        judge.assert_conforms(case, context=f"the first query stands at position {case.extension.query_start}")


@clause("positions.rotary-gradient")
def test_rotary_gradient(judge: Judge) -> None:
    rotated = replace(SQUARE, score_std=0.5).extended(rotary_base=20.0)
    grouped = replace(rotated, sizes=Sizes(num_heads=6, num_kv_heads=3, query_length=7, key_length=7))
    for case in judge.cases(rotated, rotated.sized(d_k=6, key_length=4, query_length=4), grouped):
        judge.assert_conforms(case, "gradients.query", "gradients.key")


@clause("positions.alibi")
def test_alibi(judge: Judge) -> None:
    case = SQUARE.extended(alibi=True)
    cases = (
        case,
        ALIKE.extended(alibi=True),
        case.sized(query_length=33, key_length=33),
        replace(case, mask=MaskKind.FLOAT),
        replace(case, mask=MaskKind.BOOL, padding=Padding.LEFT),
        replace(case, scale=0.2),
        case.extended(softcap=1.5),
    )
    for each in judge.cases(*cases):
        judge.assert_conforms(each)


@clause("positions.alibi-causal")
def test_alibi_causal(judge: Judge) -> None:
    case = replace(SQUARE, causal=True).extended(alibi=True)
    for each in judge.cases(case, case.sized(query_length=17, key_length=17), replace(case, padding=Padding.RIGHT)):
        judge.assert_conforms(each)


@clause("positions.alibi-start")
def test_alibi_start(judge: Judge) -> None:
    for case in judge.cases(*_starting(SQUARE.extended(alibi=True))):
        judge.assert_conforms(case)


@clause("positions.alibi-far", dtypes=("float64", "float32"))
def test_alibi_far(judge: Judge) -> None:
    for case in judge.cases(*(Case().extended(alibi=True, query_start=start) for start in FAR)):
        judge.assert_conforms(case, context=f"the first query stands at position {case.extension.query_start}")


@clause("positions.alibi-slopes")
def test_alibi_slopes(judge: Judge) -> None:
    for num_heads in POWERS:
        _assert_slopes(judge, num_heads)


@clause("positions.alibi-any-heads")
def test_alibi_any_heads(judge: Judge) -> None:
    for num_heads in OTHERS:
        _assert_slopes(judge, num_heads)


def _assert_slopes(judge: Judge, num_heads: int) -> None:
    rule = judge.conventions.alibi_rule
    _assert_function(judge, "alibi_slopes", (num_heads,), lambda dtype: alibi_slopes(num_heads, rule, dtype))


@clause("positions.relative-bias")
def test_relative_bias(judge: Judge) -> None:
    case = SQUARE.extended(relative_bias=2)
    cases = (
        case,
        ALIKE.extended(relative_bias=2),
        case.extended(relative_bias=1),
        case.extended(relative_bias=9),
        replace(case, mask=MaskKind.INFINITE),
        replace(case, causal=True),
        replace(case, scale=0.2),
        case.extended(softcap=1.5),
    )
    for each in judge.cases(*cases):
        judge.assert_conforms(each)


@clause("positions.relative-start")
def test_relative_start(judge: Judge) -> None:
    for case in judge.cases(*_starting(SQUARE.extended(relative_bias=3))):
        judge.assert_conforms(case)


@clause("positions.relative-gradient")
def test_relative_gradient(judge: Judge) -> None:
    case = replace(SQUARE, score_std=0.5).extended(relative_bias=2)
    for each in judge.cases(case, replace(case, causal=True), case.extended(relative_bias=9)):
        judge.assert_conforms(each, "gradients.relative_bias")
