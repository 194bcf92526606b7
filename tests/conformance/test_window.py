"""Chapter 19, window: how far a query sees to the left and to the right, alone and with other masks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.reference.expected import Expected
from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Scores, Sharing
from attention_conformance.spec.features import EmptyRow, WindowCount
from attention_conformance.spec.problem import Array
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed, deep, taking

SQUARE = Case().sized(query_length=7, key_length=7)
LONGER = Case().sized(query_length=33, key_length=33)
MASKED = (
    (MaskKind.BOOL, MaskShape.FULL),
    (MaskKind.BOOL, MaskShape.SHARED),
    (MaskKind.BOOL, MaskShape.KEYS),
    (MaskKind.FLOAT, MaskShape.FULL),
    (MaskKind.INFINITE, MaskShape.SAMPLE),
)
SEEDS = 50
"""So many masks are tried for one that leaves each query a key inside its window."""


def seeing(judge: Judge, case: Case, left: int | None, right: int | None) -> Case:
    """The case with a window of so many keys besides the query's own position, whatever the claimed way to count."""
    own = judge.conventions.window_count is WindowCount.INCLUDING
    return case.extended(left=None if left is None else left + own, right=right)


@clause("window.extent")
def test_extent(judge: Judge) -> None:
    near = (seeing(judge, SQUARE, *window) for window in ((2, 1), (1, 3), (3, 3)))
    for case in judge.cases(*near, seeing(judge, LONGER, 9, 12)):
        judge.assert_conforms(case)


@clause("window.narrow")
def test_narrow(judge: Judge) -> None:
    for case in judge.cases(*(seeing(judge, SQUARE, *window) for window in ((0, 0), (1, 0), (0, 1)))):
        judge.assert_conforms(case)


@clause("window.open-side")
def test_open_side(judge: Judge) -> None:
    absent = ((2, None), (None, 2), (0, None))
    wide = ((14, 1), (1, 10**6))
    for case in judge.cases(*(seeing(judge, SQUARE, *window) for window in (*absent, *wide))):
        judge.assert_conforms(case)


@clause("window.causal")
def test_causal(judge: Judge) -> None:
    flag, longer = (replace(case, causal=True) for case in (SQUARE, LONGER))
    near = (seeing(judge, flag, *window) for window in ((2, None), (2, 3), (0, 0), (None, 1)))
    for case in judge.cases(*near, seeing(judge, longer, 9, None)):
        judge.assert_conforms(case)


@clause("window.lengths")
def test_lengths(judge: Judge) -> None:
    short, single, near, long = (
        Case().sized(query_length=q, key_length=k) for q, k in ((3, 7), (1, 7), (7, 8), (5, 33))
    )
    plain = (seeing(judge, case, 2, 1) for case in (short, single, long))
    causal = (seeing(judge, replace(case, causal=True), 2, None) for case in (short, near))
    for case in judge.cases(*plain, *causal):
        judge.assert_conforms(case)


@clause("window.empty-rows")
def test_empty_rows(judge: Judge) -> None:
    for case in judge.cases(*_beyond(judge)):
        judge.assert_conforms(case)


def _beyond(judge: Judge) -> tuple[Case, ...]:
    """Whichever the alignment, some queries stand too far from all keys, and others do not."""
    case = Case().sized(query_length=9, key_length=4)
    flag = replace(case, causal=True)
    return seeing(judge, case, 1, 1), seeing(judge, flag, 2, None)


@clause("window.query-start")
def test_query_start(judge: Judge) -> None:
    case = Case().sized(query_length=3, key_length=11)
    starts = (case.extended(query_start=start) for start in (0, 4, 8))
    single = case.sized(query_length=1).extended(query_start=7)
    causal = replace(case, causal=True).extended(query_start=5)
    for asked in judge.cases(*(seeing(judge, c, 2, 1) for c in (*starts, single, causal))):
        judge.assert_conforms(asked, context=f"the first query stands at position {asked.extension.query_start}")


@clause("window.outside")
def test_outside(judge: Judge) -> None:
    for case in judge.cases(seeing(judge, SQUARE, 2, 1), seeing(judge, LONGER, 9, 4)):
        _assert_outside(judge, case, np.arange(2))
        _assert_outside(judge, case, case.sizes.key_length - 1 - np.arange(2))


def _assert_outside(judge: Judge, case: Case, keys: Array) -> None:
    problem = judge.problem(case).forward_only()

    def other(rows: Array) -> Array:
        rows[..., keys, :] = rows[..., keys, :] * -2 + 3
        return rows

    names = ("query",) if problem.sharing is Sharing.SELF else ("key", "value")
    blind = np.flatnonzero(~allowed_keys(problem, judge.conventions)[0, 0][:, keys].any(-1))
    whole = judge.expected(case)["output"]
    expected = Expected(whole.value[..., blind, :], whole.bound[..., blind, :])
    context = f"keys {', '.join(map(str, sorted(keys)))} were changed; rows whose window they are not in may not know"
    judge.assert_answers(case, changed(problem, **dict.fromkeys(names, other)), expected, context, of=taking(blind, -2))


@clause("window.any-scores")
def test_any_scores(judge: Judge) -> None:
    others = (replace(SQUARE, scores=kind) for kind in (Scores.ONE_HOT, Scores.RISING))
    very_negative = deep(judge.conventions.empty_row_causal, replace(SQUARE, scores=Scores.VERY_NEGATIVE))
    for case in judge.cases(*(seeing(judge, c, 2, 1) for c in (*others, *very_negative))):
        judge.assert_conforms(case, context=f"a window and {case.scores} scores")


@clause("window.with-mask")
def test_with_mask(judge: Judge) -> None:
    square = Case().sized(query_length=9, key_length=9)
    for case in judge.cases(
        *(seeing(judge, replace(square, mask=kind, mask_shape=shape), 4, 3) for kind, shape in MASKED)
    ):
        judge.assert_conforms(_leaving_keys(judge, case), context=f"a window and a {case.mask} mask")


def _leaving_keys(judge: Judge, case: Case) -> Case:
    """The case with a seed by which mask and window leave each query a key: two answers would be right otherwise."""
    seeds = (replace(case, seed=case.seed + n) for n in range(SEEDS))
    return next(c for c in seeds if allowed_keys(judge.problem(c), judge.conventions).any(-1).all())


@clause("window.with-padding")
def test_with_padding(judge: Judge) -> None:
    sides = {Padding.RIGHT: (5, 1), Padding.LEFT: (1, 5), Padding.HOLES: (2, 1)}
    padded = (seeing(judge, replace(SQUARE, padding=padding), *window) for padding, window in sides.items())
    for case in judge.cases(*padded):
        judge.assert_conforms(case, context=f"a window and padding ({case.padding})")


@clause("window.gradients")
def test_gradients(judge: Judge) -> None:
    flag = replace(SQUARE, causal=True)
    windows = (
        seeing(judge, SQUARE, 2, 1),
        seeing(judge, flag, 2, None),
        seeing(judge, Case().sized(query_length=3), 2, 1),
    )
    beyond = _beyond(judge)[:1] if judge.conventions.empty_row_causal is not EmptyRow.NAN else ()
    gentle = seeing(judge, replace(SQUARE, score_std=0.5), 1, 1)
    for case in judge.cases(*windows, gentle, *beyond):
        judge.assert_conforms(case, "gradients")
