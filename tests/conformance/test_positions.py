"""Chapter 21, positions: sinusoids, rotary embeddings, ALiBi and its slopes, relative biases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.encodings import alibi_slopes, sinusoids
from attention_conformance.reference.expected import Expected
from attention_conformance.reference.pipeline import Pipeline
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Sizes
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed, taking

SQUARE = Case().sized(query_length=7, key_length=7)
ALIKE = Case().sized(num_heads=5, query_length=5, key_length=5)
"""As many heads as queries and keys: a slope or a table laid along the wrong axis fits."""
STARTS = ((1, 6), (3, 4), (5, 1))
"""Numbers of queries, and the position of the first one; there are 7 keys."""
FAR = (2003, 4099)
"""Positions that no half type holds: bfloat16 ends at 256, float16 at 2048."""
LONG = (
    Case(score_std=4.0)
    .sized(batch=1, num_heads=1, query_length=3, key_length=2099)
    .extended(rotary_base=10.0, query_start=2097)
)
POWERS = (1, 2, 4, 8, 16, 64)
OTHERS = (3, 5, 6, 7, 12, 20, 40, 71, 112)
ROTATED, QUICK = (SQUARE.extended(rotary_base=base) for base in (10000.0, 10.0))
GENTLE_ROTATED = replace(SQUARE, score_std=0.5).extended(rotary_base=20.0)
GROUPED = Sizes(num_heads=6, num_kv_heads=3, query_length=7, key_length=7)
ALIBI = SQUARE.extended(alibi=True)
CAUSAL_ALIBI = replace(ALIBI, causal=True)
BIASED = SQUARE.extended(relative_bias=2)
GENTLE_BIASED = replace(BIASED, score_std=0.5)
FAR_START = "the first query is at position {case.extension.query_start}"


def _starting(case: Case) -> list[Case]:
    """The case with queries that start later, and one that continues a sequence under the causal flag."""
    later = [case.sized(query_length=queries).extended(query_start=start) for queries, start in STARTS]
    return [*later, replace(later[1], causal=True)]


CLAUSES = table(
    row(
        "positions.rotary",
        *(ROTATED, QUICK.sized(d_k=8), QUICK.sized(d_k=2), QUICK.sized(d_k=6, query_length=17, key_length=17)),
        *(replace(ROTATED, causal=True, seed=1), replace(QUICK, mask=MaskKind.FLOAT, seed=2)),
        replace(QUICK, sizes=GROUPED),
    ),
    row("positions.rotary-start", *_starting(SQUARE.extended(rotary_base=20.0))),
    row(
        "positions.rotary-far",
        *(Case().extended(rotary_base=base, query_start=start) for base in (10000.0, 10.0) for start in FAR),
        LONG,
        context=FAR_START,
    ),
    row(
        "positions.rotary-gradient",
        *(GENTLE_ROTATED, GENTLE_ROTATED.sized(d_k=6, key_length=4, query_length=4)),
        replace(GENTLE_ROTATED, sizes=GROUPED),
        parts=("gradients.query", "gradients.key"),
    ),
    row(
        "positions.alibi",
        *(ALIBI, ALIKE.extended(alibi=True), ALIBI.sized(query_length=33, key_length=33)),
        *(replace(ALIBI, mask=MaskKind.FLOAT), replace(ALIBI, mask=MaskKind.BOOL, padding=Padding.LEFT)),
        *(replace(ALIBI, scale=0.2), ALIBI.extended(softcap=1.5)),
    ),
    row(
        "positions.alibi-causal",
        *(CAUSAL_ALIBI, CAUSAL_ALIBI.sized(query_length=17, key_length=17)),
        replace(CAUSAL_ALIBI, padding=Padding.RIGHT),
    ),
    row("positions.alibi-start", *_starting(ALIBI)),
    row(
        "positions.alibi-far",
        *(Case().extended(alibi=True, query_start=start) for start in FAR),
        dtypes=("float64", "float32"),
        context=FAR_START,
    ),
    row(
        "positions.relative-bias",
        *(BIASED, ALIKE.extended(relative_bias=2), BIASED.extended(relative_bias=1), BIASED.extended(relative_bias=9)),
        *(replace(BIASED, mask=MaskKind.INFINITE), replace(BIASED, causal=True)),
        *(replace(BIASED, scale=0.2), BIASED.extended(softcap=1.5)),
    ),
    row("positions.relative-start", *_starting(SQUARE.extended(relative_bias=3))),
    row(
        "positions.relative-gradient",
        *(GENTLE_BIASED, replace(GENTLE_BIASED, causal=True), GENTLE_BIASED.extended(relative_bias=9)),
        parts=("gradients.relative_bias",),
    ),
)


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


@clause("positions.rotary-norm")
def test_rotary_norm(judge: Judge) -> None:
    for case in judge.cases(SQUARE.extended(rotary_base=50.0), SQUARE.sized(d_k=6).extended(rotary_base=10000.0)):
        last = min(case.sizes.query_length, case.sizes.key_length) - 1
        for place in sorted({min(1, last), last}):
            _assert_as_if_not_rotated(judge, case, place)


def _assert_as_if_not_rotated(judge: Judge, case: Case, place: int) -> None:
    """All keys are 0, and rotation leaves them 0, except the one at the query's own position."""

    def alone(rows: Array) -> Array:
        kept = rows[..., place, :].copy()
        rows[:] = 0
        rows[..., place, :] = kept
        return rows

    problem = changed(judge.problem(case).forward_only(), key=alone)
    not_rotated = replace(problem, extension=replace(problem.extension, rotary_base=None))
    value, bound = Pipeline().run(not_rotated, judge.conventions).output, judge.solve(problem).parts["output"].bound
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
    moved = replace(case, mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS).sized(key_length=later.key.shape[-2])
    if not judge.allows(moved.extended(query_start=later.extension.query_start)):
        return
    if own := judge.own(case, before, bound):
        judge.assert_answers(case, later, own, f"all stand {steps} positions later, after masked keys")


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
