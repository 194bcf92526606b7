"""Chapter 7, masks: which keys a query may see, what is added to its scores, and rows that see nothing."""

from dataclasses import replace
from itertools import product

import ml_dtypes
import numpy as np

from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Poison, Scores, Sizes
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed, deep

SAME = Sizes(batch=3, num_heads=3, query_length=3, key_length=3, d_k=3, d_v=3)
"""Extents that let a mask fit along a wrong axis."""
RANKS = (MaskShape.HEADS_ONLY, MaskShape.KEYS_ONLY)
"""Shapes of masks with neither two nor four axes."""
KEY_PADDING = (Padding.RIGHT, Padding.LEFT, Padding.HOLES)
VALID_LENS = (Padding.LENGTHS, Padding.QUERY_LENGTHS)
FREE_SHAPES = tuple(shape for shape in MaskShape if shape not in (MaskShape.QUERIES, *RANKS))
"""Shapes of masks that leave each query a key."""


BOOL = Case(mask=MaskKind.BOOL)
BY_KEY = Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS)
LEAST = (MaskShape.FULL, MaskShape.SHARED)
SEGMENTS = Case(mask=MaskKind.BOOL, pattern=Pattern.SEGMENTS, mask_shape=MaskShape.SHARED)
LARGE = replace(BY_KEY, poison=Poison.LARGE)
SINGLE_LOW = replace(BY_KEY, pattern=Pattern.SINGLE_KEY, scores=Scores.VERY_NEGATIVE)
PREFIX = Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS, pattern=Pattern.PREFIX).sized(batch=3, key_length=9)
PREFIX_SHAPES = (MaskShape.KEYS, MaskShape.SAMPLE, MaskShape.EACH_KEYS)
TRIANGLE = Case(seed=15, mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED, pattern=Pattern.TRIANGLE)
RULES = replace(TRIANGLE, seed=0, pattern=Pattern.RULES).sized(query_length=7, key_length=7)
MIDDLE = Case(seed=19, mask=MaskKind.BOOL, pattern=Pattern.MIDDLE).sized(batch=3)
NEARLY = replace(MIDDLE, seed=20, pattern=Pattern.NEARLY_TRIANGLE).sized(query_length=7)
"""Masks whose first and last samples, heads, rows and columns, and whose diagonal, do not show what they hide."""
OF_REAL = Case(seed=18).sized(batch=4).extended(query_lens=True)
"""Samples have all queries, some, or none."""
EMPTY_LENGTHS = Case(padding=Padding.EMPTY_LENGTHS)
PADDED_LOW = Case(padding=Padding.RIGHT, scores=Scores.VERY_NEGATIVE)


def _with_empty_rows(kind: MaskKind) -> tuple[Case, ...]:
    empty = Case(mask=kind, pattern=Pattern.EMPTY_ROW)
    shared = replace(empty, mask_shape=MaskShape.SHARED, seed=10)
    sized = (empty.sized(query_length=1), empty.sized(key_length=1), empty.sized(key_length=33))
    return empty, shared, *sized, replace(empty, pattern=Pattern.EMPTY_IN_ONE, seed=17)


CLAUSES = table(
    row(
        "masks.bool",
        *(BOOL, BOOL.sized(query_length=7), replace(BOOL, pattern=Pattern.SINGLE_KEY)),
        Case(SAME, mask=MaskKind.BOOL, seed=1),
    ),
    row(
        "masks.broadcast",
        *(Case(n, seed=2, mask=MaskKind.BOOL, mask_shape=shape) for n in (Sizes(), SAME) for shape in FREE_SHAPES),
    ),
    row(
        "masks.float",
        *(Case(seed=3, mask=MaskKind.FLOAT, mask_shape=shape) for shape in (*FREE_SHAPES, MaskShape.QUERIES)),
        *(Case(SAME, seed=4, mask=MaskKind.FLOAT), Case(mask=MaskKind.FLOAT, pattern=Pattern.ALL)),
        replace(MIDDLE, mask=MaskKind.FLOAT),
    ),
    row(
        "masks.float-infinity",
        *(Case(seed=5, mask=MaskKind.INFINITE, mask_shape=shape) for shape in FREE_SHAPES),
        Case(mask=MaskKind.INFINITE, pattern=Pattern.SINGLE_KEY),
        *(replace(MIDDLE, mask=MaskKind.INFINITE), replace(NEARLY, mask=MaskKind.INFINITE)),
    ),
    row(
        "masks.key-padding",
        *(Case(n, padding=p, seed=s) for p in KEY_PADDING for n, s in ((Sizes(), 0), (SAME, 6))),
        Case(padding=Padding.MIDDLE, seed=21).sized(batch=3),
        *(Case(padding=Padding.FIRST_TILE, seed=23, score_std=3.0).sized(key_length=n) for n in (33, 129, 257)),
    ),
    row(
        "masks.valid-lens",
        *(Case(n, padding=p, seed=s) for p in VALID_LENS for n, s in ((Sizes(), 0), (SAME, 7))),
        Case(padding=Padding.MIDDLE_LENGTHS, seed=22).sized(batch=3),
    ),
    row(
        "masks.intersect",
        *(Case(mask=kind, padding=p, seed=8) for kind in (MaskKind.BOOL, MaskKind.INFINITE) for p in KEY_PADDING[:2]),
    ),
    row(
        "masks.segments",
        *(SEGMENTS, SEGMENTS.sized(query_length=8, key_length=8)),
        context="a query sees the keys of its own segment",
    ),
    row(
        "masks.prefix",
        *(replace(PREFIX, mask_shape=shape, seed=13) for shape in PREFIX_SHAPES),
        *(replace(PREFIX, mask=MaskKind.INFINITE, seed=14).sized(batch=n) for n in (1, 2)),
        context="the mask leaves the first keys, in each sample another number of them",
    ),
    row(
        "masks.triangle",
        *(TRIANGLE.sized(query_length=n, key_length=7) for n in (4, 7, 9)),
        *(replace(TRIANGLE, mask=MaskKind.INFINITE, seed=16).sized(query_length=n, key_length=7) for n in (5, 7)),
        context="the mask leaves each query the keys up to its own number",
    ),
    row(
        "masks.rules",
        *(replace(RULES, seed=seed) for seed in range(4)),
        replace(RULES, mask_shape=MaskShape.SAMPLE).sized(batch=4, query_length=5, key_length=8),
        replace(RULES, mask=MaskKind.INFINITE),
        context="the mask has a rule of a model written out",
    ),
    row(
        "masks.middle",
        *(replace(MIDDLE, mask_shape=shape) for shape in (MaskShape.FULL, MaskShape.KEYS, MaskShape.SHARED)),
        *(NEARLY, replace(NEARLY, mask_shape=MaskShape.SHARED)),
        context="the mask hides keys in the middle alone",
    ),
    row(
        "masks.neutral",
        *(Case(mask=kind, pattern=Pattern.ALL) for kind in (MaskKind.BOOL, MaskKind.FLOAT)),
        context="a mask that masks nothing changes nothing",
    ),
    row(
        "masks.no-influence",
        *(LARGE, replace(LARGE, mask=MaskKind.INFINITE, seed=9)),
        *(Case(padding=padding, poison=Poison.LARGE) for padding in (Padding.RIGHT, Padding.LENGTHS)),
        LARGE.sized(key_length=33),
        context="huge numbers stand in masked keys and values",
    ),
    row(
        "masks.fill-value",
        lambda claimed: deep(claimed.empty_row_bool, SINGLE_LOW),
        SINGLE_LOW.sized(key_length=33),
        context="the visible score is far below 0, masked ones are 0 before the mask",
    ),
    row(
        "masks.padding-fill-value",
        lambda claimed: deep(claimed.empty_row_padding, PADDED_LOW),
        replace(PADDED_LOW, padding=Padding.HOLES),
        dtypes=("float64", "float32"),
        context="real scores are far below 0, padded ones are 0 before the mask",
    ),
    row(
        "masks.empty-row-bool",
        *_with_empty_rows(MaskKind.BOOL),
        context="a row without keys is claimed to give {claimed.empty_row_bool}",
    ),
    row(
        "masks.empty-row-float",
        *_with_empty_rows(MaskKind.INFINITE),
        context="a row without keys is claimed to give {claimed.empty_row_float}",
    ),
    row(
        "masks.empty-row-padding",
        *(Case(sizes, padding=Padding.EMPTY_SAMPLE) for sizes in (Sizes(), SAME)),
        context="a sample without keys is claimed to give {claimed.empty_row_padding}",
    ),
    row(
        "masks.empty-lengths",
        *(EMPTY_LENGTHS, replace(EMPTY_LENGTHS, sizes=SAME), EMPTY_LENGTHS.sized(query_length=1, batch=3)),
        context="the last sample has the length 0, and is claimed to give {claimed.empty_row_padding}",
    ),
    row(
        "masks.query-lens",
        *(OF_REAL, OF_REAL.sized(query_length=1), OF_REAL.sized(query_length=6, key_length=9, batch=3)),
        *(
            replace(OF_REAL, causal=True),
            replace(OF_REAL, padding=Padding.LENGTHS),
            replace(OF_REAL, mask=MaskKind.BOOL),
        ),
        replace(OF_REAL, causal=True, padding=Padding.LENGTHS).sized(query_length=3, key_length=11),
        context="a query beyond the length of its sample is claimed to give {claimed.padded_queries}",
    ),
    row(
        "masks.containment",
        *(replace(BY_KEY, mask=kind, poison=Poison.NAN) for kind in (MaskKind.BOOL, MaskKind.INFINITE)),
        Case(padding=Padding.RIGHT, poison=Poison.NAN),
        context="NaN stands in masked keys and values",
    ),
)


@clause("masks.least-finite")
def test_least_finite(judge: Judge) -> None:
    least = ml_dtypes.finfo(DTYPES[judge.dtype]).min  # type: ignore[no-untyped-call]  # its stubs lack one for half types
    for case in judge.cases(*(Case(seed=12 + n, mask=MaskKind.INFINITE, mask_shape=s) for n, s in enumerate(LEAST))):
        for whole in judge.problems(case):
            problem = changed(whole, attn_mask=lambda mask: np.where(np.isneginf(mask), least, mask))
            expected = judge.expected(case, gradients=problem.cotangent is not None)
            if (result := judge.answer(case, problem)) is not None:
                wanted = judge.expanded(("output", *(["gradients"] if problem.needs else [])), problem)
                judge.compare(case, result, expected, wanted, "masked by the least finite number")


@clause("masks.rank")
def test_rank(judge: Judge) -> None:
    kinds = (MaskKind.BOOL, MaskKind.FLOAT)
    alternatives = product((Sizes(), SAME), kinds, RANKS)
    for case in judge.cases(*(Case(n, seed=11, mask=kind, mask_shape=shape) for n, kind, shape in alternatives)):
        judge.assert_conforms_or_refuses(case, context=f"a mask ({case.mask_shape})")


@clause("masks.zero-weight")
def test_zero_weight(judge: Judge) -> None:
    for case in judge.cases(BOOL, replace(BY_KEY, score_std=6.0)):
        judge.assert_conforms(case, "weights")
        problem = judge.problem(case).forward_only()
        assert problem.attn_mask is not None
        if (result := judge.answer(case, problem)) is not None:
            shape, weights = judge.expected(case)["weights"].value.shape, result.weights
            fits = weights is not None and weights.shape == shape
            holds = fits and not np.asarray(weights)[~np.broadcast_to(problem.attn_mask, shape)].any()
            judge.assert_that(case, bool(holds), "the weight of a masked key is not exactly 0")
