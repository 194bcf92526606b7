"""Chapter 7, masks: which keys a query may see, what is added to its scores, and rows that see nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Poison, Scores, Sizes
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import deep

SAME = Sizes(batch=3, num_heads=3, query_length=3, key_length=3, d_k=3, d_v=3)
"""Extents that let a mask fit along a wrong axis."""
RANKS = (MaskShape.HEADS_ONLY, MaskShape.KEYS_ONLY)
"""Shapes of masks with neither two nor four axes."""
SHAPES = tuple(shape for shape in MaskShape if shape not in (MaskShape.QUERIES, *RANKS))
"""Shapes of masks that leave each query a key."""


@clause("masks.bool")
def test_bool(judge: Judge) -> None:
    mask = Case(mask=MaskKind.BOOL)
    single = Case(mask=MaskKind.BOOL, pattern=Pattern.SINGLE_KEY)
    for case in judge.cases(mask, mask.sized(query_length=7), single, Case(SAME, mask=MaskKind.BOOL, seed=1)):
        judge.assert_conforms(case)


@clause("masks.broadcast")
def test_broadcast(judge: Judge) -> None:
    for sizes in (Sizes(), SAME):
        for case in judge.cases(*(Case(sizes, seed=2, mask=MaskKind.BOOL, mask_shape=shape) for shape in SHAPES)):
            judge.assert_conforms(case)


@clause("masks.rank")
def test_rank(judge: Judge) -> None:
    kinds = (MaskKind.BOOL, MaskKind.FLOAT)
    cases = (
        Case(n, seed=11, mask=kind, mask_shape=shape) for n in (Sizes(), SAME) for kind in kinds for shape in RANKS
    )
    for case in judge.cases(*cases):
        judge.assert_conforms_or_refuses(case, context=f"a mask ({case.mask_shape})")


@clause("masks.float")
def test_float(judge: Judge) -> None:
    for case in judge.cases(
        *(Case(seed=3, mask=MaskKind.FLOAT, mask_shape=shape) for shape in (*SHAPES, MaskShape.QUERIES)),
        Case(SAME, seed=4, mask=MaskKind.FLOAT),
        Case(mask=MaskKind.FLOAT, pattern=Pattern.ALL),
    ):
        judge.assert_conforms(case)


@clause("masks.float-infinity")
def test_float_infinity(judge: Judge) -> None:
    single = Case(mask=MaskKind.INFINITE, pattern=Pattern.SINGLE_KEY)
    for case in judge.cases(*(Case(seed=5, mask=MaskKind.INFINITE, mask_shape=shape) for shape in SHAPES), single):
        judge.assert_conforms(case)


@clause("masks.key-padding")
def test_key_padding(judge: Judge) -> None:
    for padding in (Padding.RIGHT, Padding.LEFT, Padding.HOLES):
        for case in judge.cases(Case(padding=padding), Case(SAME, padding=padding, seed=6)):
            judge.assert_conforms(case)


@clause("masks.valid-lens")
def test_valid_lens(judge: Judge) -> None:
    for padding in (Padding.LENGTHS, Padding.QUERY_LENGTHS):
        for case in judge.cases(Case(padding=padding), Case(SAME, padding=padding, seed=7)):
            judge.assert_conforms(case)


@clause("masks.intersect")
def test_intersect(judge: Judge) -> None:
    for kind in (MaskKind.BOOL, MaskKind.INFINITE):
        for case in judge.cases(*(Case(mask=kind, padding=p, seed=8) for p in (Padding.RIGHT, Padding.LEFT))):
            judge.assert_conforms(case)


@clause("masks.segments")
def test_segments(judge: Judge) -> None:
    segments = Case(mask=MaskKind.BOOL, pattern=Pattern.SEGMENTS, mask_shape=MaskShape.SHARED)
    for case in judge.cases(segments, segments.sized(query_length=8, key_length=8)):
        judge.assert_conforms(case, context="a query sees the keys of its own segment")


@clause("masks.neutral")
def test_neutral(judge: Judge) -> None:
    for case in judge.cases(
        Case(mask=MaskKind.BOOL, pattern=Pattern.ALL), Case(mask=MaskKind.FLOAT, pattern=Pattern.ALL)
    ):
        judge.assert_conforms(case, context="a mask that masks nothing changes nothing")


@clause("masks.no-influence")
def test_no_influence(judge: Judge) -> None:
    masked = Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS, poison=Poison.LARGE)
    for case in judge.cases(
        masked,
        Case(mask=MaskKind.INFINITE, mask_shape=MaskShape.KEYS, poison=Poison.LARGE, seed=9),
        Case(padding=Padding.RIGHT, poison=Poison.LARGE),
        Case(padding=Padding.LENGTHS, poison=Poison.LARGE),
        masked.sized(key_length=33),
    ):
        judge.assert_conforms(case, context="huge numbers stand in masked keys and values")


@clause("masks.fill-value")
def test_fill_value(judge: Judge) -> None:
    very_negative = Case(
        mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS, pattern=Pattern.SINGLE_KEY, scores=Scores.VERY_NEGATIVE
    )
    for case in judge.cases(*deep(judge.conventions.empty_row_bool, very_negative), very_negative.sized(key_length=33)):
        judge.assert_conforms(case, context="the kept score is far below 0, masked ones are 0 before the mask")


@clause("masks.padding-fill-value", dtypes=("float64", "float32"))
def test_padding_fill_value(judge: Judge) -> None:
    very_negative = Case(padding=Padding.RIGHT, scores=Scores.VERY_NEGATIVE)
    cases = deep(judge.conventions.empty_row_padding, very_negative)
    for case in judge.cases(*cases, replace(very_negative, padding=Padding.HOLES)):
        judge.assert_conforms(case, context="real scores are far below 0, padded ones are 0 before the mask")


@clause("masks.zero-weight")
def test_zero_weight(judge: Judge) -> None:
    for case in judge.cases(
        Case(mask=MaskKind.BOOL), Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS, score_std=6.0)
    ):
        judge.assert_conforms(case, "weights")
        problem = judge.problem(case).forward_only()
        assert problem.attn_mask is not None
        try:
            weights = judge.run(problem).weights
        except CandidateError as error:
            judge.record_error(case, error)
            continue
        shape = judge.expected(case)["weights"].value.shape
        fits = weights is not None and weights.shape == shape
        holds = fits and not np.asarray(weights)[~np.broadcast_to(problem.attn_mask, shape)].any()
        judge.assert_that(case, bool(holds), "the weight of a masked key is not exactly 0")


@clause("masks.empty-row-bool")
def test_empty_row_bool(judge: Judge) -> None:
    _assert_empty_rows(judge, MaskKind.BOOL, str(judge.conventions.empty_row_bool))


@clause("masks.empty-row-float")
def test_empty_row_float(judge: Judge) -> None:
    _assert_empty_rows(judge, MaskKind.INFINITE, str(judge.conventions.empty_row_float))


def _assert_empty_rows(judge: Judge, kind: MaskKind, answer: str) -> None:
    empty = Case(mask=kind, pattern=Pattern.EMPTY_ROW)
    shared = Case(mask=kind, pattern=Pattern.EMPTY_ROW, mask_shape=MaskShape.SHARED, seed=10)
    short, long = empty.sized(key_length=1), empty.sized(key_length=33)
    for case in judge.cases(empty, shared, empty.sized(query_length=1), short, long):
        judge.assert_conforms(case, context=f"a row without keys is claimed to answer {answer}")


@clause("masks.empty-row-padding")
def test_empty_row_padding(judge: Judge) -> None:
    answer = judge.conventions.empty_row_padding
    for case in judge.cases(Case(padding=Padding.EMPTY_SAMPLE), Case(SAME, padding=Padding.EMPTY_SAMPLE)):
        judge.assert_conforms(case, context=f"a sample without keys is claimed to answer {answer}")


@clause("masks.containment")
def test_containment(judge: Judge) -> None:
    for case in judge.cases(
        Case(mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS, poison=Poison.NAN),
        Case(mask=MaskKind.INFINITE, mask_shape=MaskShape.KEYS, poison=Poison.NAN),
        Case(padding=Padding.RIGHT, poison=Poison.NAN),
    ):
        judge.assert_conforms(case, context="NaN stands in masked keys and values")
