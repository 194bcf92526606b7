"""Chapter 30, rotary-tables: rotations by given cosines and sines, and functions that make them."""

from collections.abc import Callable
from dataclasses import astuple, replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.reference.expected import Expected
from attention_conformance.reference.rotary_scaling import OnAxes, Scaled, axes_rotary, scaled_rotary
from attention_conformance.spec.cases import Case, MaskKind, Padding, Sizes
from attention_conformance.spec.features import Packing, PositionIds, QkNorm, RotaryTables
from attention_conformance.tests.harness.judge.clause_tests import clause, group, row, table
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge

GIVEN = Case(seed=371).sized(query_length=7, d_k=6).extended(rotary_tables=RotaryTables.POSITIONS)
GENTLE = replace(GIVEN, seed=372, score_std=0.5)
GROUPED = Sizes(num_heads=6, num_kv_heads=3, query_length=7, key_length=7)
PART = GIVEN.sized(d_k=9).extended(rotary_dim=4)
IDS = GIVEN.extended(position_ids=PositionIds.ASCENDING)
CLAUSES = table(
    row(
        "rotary-tables.scores",
        *(GIVEN, GIVEN.sized(d_k=2), PART, GIVEN.sized(query_length=4), GIVEN.sized(query_length=1, batch=3)),
        *(replace(GIVEN, seed=373, causal=True), replace(GIVEN, seed=374, mask=MaskKind.FLOAT, padding=Padding.LEFT)),
        *(replace(GIVEN, sizes=GROUPED), GIVEN.sized(query_length=17, key_length=17), GIVEN.extended(sinks=True)),
        GIVEN.extended(packing=Packing.SEGMENTS),
        replace(GIVEN, seed=378, causal=True, padding=Padding.LENGTHS).sized(batch=3, query_length=2, key_length=11),
        context="rotated by given cosines and sines",
    ),
    row(
        "rotary-tables.start",
        *(GIVEN.sized(query_length=n).extended(query_start=at) for n, at in ((1, 6), (3, 4), (5, 1))),
        replace(GIVEN, seed=375, causal=True).sized(query_length=3).extended(query_start=4),
        context="the first query is at position {case.extension.query_start}",
    ),
    row(
        "rotary-tables.ids",
        *(IDS, IDS.extended(position_ids=PositionIds.RESTARTING), IDS.sized(query_length=4)),
        IDS.extended(position_ids=PositionIds.FAR),
        replace(IDS, seed=376, causal=True, padding=Padding.RIGHT),
        context="ids are {case.extension.position_ids}",
    ),
    row(
        "rotary-tables.norm",
        *(replace(GIVEN, seed=377, score_std=6.0).extended(qk_norm=QkNorm.HEAD),),
        context="normalised, and rotated by tables",
    ),
    row(
        "rotary-tables.gradient",
        *(GENTLE, replace(GENTLE, sizes=GROUPED), GENTLE.sized(d_k=9).extended(rotary_dim=4)),
        parts=("gradients.query", "gradients.key"),
    ),
)
SHORT, LONG = (1.0, 1.05, 1.2, 1.5, 2.0, 2.5, 3.0, 3.5), (1.1, 1.6, 2.9, 5.0, 9.0, 14.0, 21.0, 30.0)
SCALED = {
    "rotary-tables.linear": (Scaled("linear", 40, 8, 100.0, 4.0, 16), Scaled("linear", 3, 6, 10000.0, 2.5, 16)),
    "rotary-tables.dynamic": tuple(Scaled("dynamic", length, 8, 100.0, 4.0, 16) for length in (9, 16, 17, 48)),
    "rotary-tables.yarn": (
        Scaled("yarn", 70, 16, 10000.0, 4.0, 500),
        Scaled("yarn", 70, 64, 10000.0, 16.0, 2048),
        Scaled("yarn", 30, 8, 100.0, 2.0, 16),
    ),
    "rotary-tables.llama3": (
        Scaled("llama3", 70, 16, 10000.0, 8.0, 500),
        Scaled("llama3", 70, 64, 500000.0, 8.0, 8192),
    ),
    "rotary-tables.longrope": tuple(
        Scaled("longrope", length, 16, 10000.0, 4.0, original, SHORT, LONG)
        for length, original in ((20, 32), (32, 32), (33, 32), (90, 32), (24, 24))
    ),
}

TEXT, GRID = 3, (2, 3, 4)
VIDEO = tuple((*range(TEXT), *(TEXT + index.ravel()).tolist(), 40) for index in np.indices(GRID))
"""Words, frames of a video with rows and columns, and a word far behind them."""
PLANE = ((0, 0, 1, 1, 7), (0, 5, 0, 5, 2))
ON_AXES = (
    *(OnAxes(order, VIDEO, pairs, 10000.0) for order in ("sections", "turns") for pairs in ((8, 4, 4), (6, 5, 5))),
    *(OnAxes(order, PLANE, (3, 2), 100.0) for order in ("sections", "turns")),
)


def _assert_tables(judge: Judge, wanted: tuple[Scaled, ...]) -> None:
    for each in wanted:
        _assert_made(judge, "scaled_rotary", each.arguments, str(each), partial(scaled_rotary, each))


TABLES = group(_assert_tables, SCALED)


@clause("rotary-tables.axes")
def test_axes(judge: Judge) -> None:
    for each in ON_AXES:
        _assert_made(judge, "axes_rotary", astuple(each), str(each), partial(axes_rotary, each))


def _assert_made(
    judge: Judge, function: str, given: tuple[object, ...], words: str, expected: Callable[[str], Expected]
) -> None:
    try:
        got = judge.call(function, *given)
    except CandidateError as error:
        judge.record_error(Case(), error, words)
        return
    judge.record(Case(), compare(words, got, expected(got.dtype.name), got.dtype.name))
