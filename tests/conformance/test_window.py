"""Chapter 19, window: how far a query sees to the left and to the right, alone and with other masks."""

from dataclasses import replace

import numpy as np

from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Scores, Sharing
from attention_conformance.spec.conventions import Conventions, EmptyRow
from attention_conformance.spec.problem import Array
from attention_conformance.tests.harness.judge.clause_tests import Rule, clause, row, table
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed, deep, taking
from attention_conformance.tests.harness.judge.search import leaving_keys

SQUARE = Case().sized(query_length=7, key_length=7)
LONGER = Case().sized(query_length=33, key_length=33)
MASKED = (
    (MaskKind.BOOL, MaskShape.FULL),
    (MaskKind.BOOL, MaskShape.SHARED),
    (MaskKind.BOOL, MaskShape.KEYS),
    (MaskKind.FLOAT, MaskShape.FULL),
    (MaskKind.INFINITE, MaskShape.SAMPLE),
)
CAUSAL = replace(SQUARE, causal=True)
AT_START = Case().sized(query_length=3, key_length=11).extended(query_start=0)
SIDES = {Padding.RIGHT: (5, 1), Padding.LEFT: (1, 5), Padding.HOLES: (2, 1)}


def seeing(case: Case, left: int | None, right: int | None, claimed: Conventions) -> Case:
    """The case with a window of so many keys in addition to the query's own, whatever the claimed way to count."""
    own = claimed.own_counted(case.causal)
    return case.extended(window_left=None if left is None else left + own, window_right=right)


def window(left: int | None, right: int | None, *cases: Case) -> Rule:
    """The cases with such a window."""
    return lambda claimed: [seeing(case, left, right, claimed) for case in cases]


def long(query_length: int, key_length: int) -> Case:
    return Case().sized(query_length=query_length, key_length=key_length)


OUT_OF_REACH = (window(1, 1, long(9, 4)), window(2, None, replace(long(9, 4), causal=True)))
"""In either alignment, some queries are too far from all keys, and others are not."""

CLAUSES = table(
    row("window.extent", *(window(*size, SQUARE) for size in ((2, 1), (1, 3), (3, 3))), window(9, 12, LONGER)),
    row("window.narrow", *(window(*size, SQUARE) for size in ((0, 0), (1, 0), (0, 1)))),
    row(
        "window.open-side",
        *(window(*size, SQUARE) for size in ((2, None), (None, 2), (0, None), (14, 1), (1, 10**6))),
    ),
    row(
        "window.causal",
        *(window(*size, CAUSAL) for size in ((2, None), (2, 3), (0, 0), (None, 1))),
        window(9, None, replace(LONGER, causal=True)),
    ),
    row(
        "window.lengths",
        window(2, 1, long(3, 7), long(1, 7), long(5, 33)),
        window(2, None, *(replace(long(*lengths), causal=True) for lengths in ((3, 7), (7, 8)))),
    ),
    row("window.empty-rows", *OUT_OF_REACH),
    row(
        "window.query-start",
        window(2, 1, *(AT_START.extended(query_start=start) for start in (0, 4, 8))),
        window(2, 1, AT_START.sized(query_length=1).extended(query_start=7)),
        window(2, 1, replace(AT_START, causal=True).extended(query_start=5)),
        context="the first query is at position {case.extension.query_start}",
    ),
    row(
        "window.any-scores",
        window(2, 1, *(replace(SQUARE, scores=kind) for kind in (Scores.ONE_HOT, Scores.RISING))),
        lambda claimed: [
            seeing(case, 2, 1, claimed)
            for case in deep(claimed.empty_row_causal, replace(SQUARE, scores=Scores.VERY_NEGATIVE))
        ],
        context="a window and {case.scores} scores",
    ),
    row(
        "window.with-padding",
        *(window(*size, replace(SQUARE, padding=padding)) for padding, size in SIDES.items()),
        context="a window and padding ({case.padding})",
    ),
    row(
        "window.gradients",
        *(window(2, 1, SQUARE), window(2, None, CAUSAL), window(2, 1, long(3, 7))),
        window(1, 1, replace(SQUARE, score_std=0.5)),
        lambda claimed: OUT_OF_REACH[0](claimed) if claimed.empty_row_causal is not EmptyRow.NAN else (),
        parts=("gradients",),
    ),
)


@clause("window.outside")
def test_outside(judge: Judge) -> None:
    claimed = judge.conventions
    for case in judge.cases(seeing(SQUARE, 2, 1, claimed), seeing(LONGER, 9, 4, claimed)):
        _assert_outside(judge, case, np.arange(min(2, case.sizes.key_length)))
        _assert_outside(judge, case, np.arange(max(0, case.sizes.key_length - 2), case.sizes.key_length)[::-1])


def _assert_outside(judge: Judge, case: Case, keys: Array) -> None:
    problem = judge.problem(case).forward_only()

    def other(rows: Array) -> Array:
        rows[..., keys, :] = rows[..., keys, :] * -2 + 3
        return rows

    names = ("query",) if problem.sharing is Sharing.SELF else ("key", "value")
    blind = np.flatnonzero(~allowed_keys(problem, judge.conventions)[0, 0][:, keys].any(-1))
    context = f"keys {', '.join(map(str, sorted(keys)))} were changed; rows whose window they are not in may not know"
    problem = changed(problem, **dict.fromkeys(names, other))
    judge.assert_answers(case, problem, judge.expected(case)["output"], context, of=taking(blind, -2))


@clause("window.with-mask")
def test_with_mask(judge: Judge) -> None:
    square = Case().sized(query_length=9, key_length=9)
    masked = [replace(square, mask=kind, mask_shape=shape) for kind, shape in MASKED]
    started = [case.sized(query_length=5).extended(query_start=3) for case in masked[:1] + masked[3:4]]
    for case in judge.cases(*(seeing(case, 4, 3, judge.conventions) for case in masked + started)):
        judge.assert_conforms(leaving_keys(judge, case), context=f"a window and a {case.mask} mask")
