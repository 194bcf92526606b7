"""Chapter 2, softmax: normalisation over the keys, stable for any finite scores, and what is returned of it."""

from __future__ import annotations

from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Scores, Sizes, Values
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import LEAD
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.judge import Judge

MASKED = (
    Case(mask=MaskKind.BOOL),
    Case(mask=MaskKind.INFINITE, mask_shape=MaskShape.HEAD),
    Case(padding=Padding.LEFT),
    Case(causal=True).sized(query_length=7),
)
"""One case of each kind of mask, for those that claim it."""


@clause("softmax.rows-sum-to-one")
def test_rows_sum_to_one(judge: Judge) -> None:
    constant = Case(values=Values.CONSTANT)
    for case in judge.cases(constant, constant.sized(d_k=16), Case(values=Values.CONSTANT, mask=MaskKind.BOOL)):
        judge.assert_conforms(case, context="with equal value rows, weights that sum to 1 give that row")
    for case in judge.cases(Case(), *MASKED) if Feature.WEIGHTS in judge.claims else ():
        judge.assert_conforms(case, "weights", context="the weights of a row sum to 1")


@clause("softmax.over-keys")
def test_over_keys(judge: Judge) -> None:
    square = Sizes(batch=3, num_heads=3, query_length=3, key_length=3, d_k=3, d_v=3)
    for case in judge.cases(Case(score_std=3.0), Case(square, score_std=3.0), Case(score_std=3.0).sized(key_length=13)):
        judge.assert_conforms(case)


@clause("softmax.large-scores")
def test_large_scores(judge: Judge) -> None:
    for case in judge.cases(Case(scores=Scores.ONE_HOT), Case(scores=Scores.ONE_HOT, seed=1).sized(key_length=16)):
        judge.assert_conforms(case, context=f"scores as large as {LEAD * case.sizes.d_k**0.5:.0f}")


@clause("softmax.row-maximum")
def test_row_maximum(judge: Judge) -> None:
    for case in judge.cases(Case(scores=Scores.FAR_ROWS), Case(scores=Scores.FAR_ROWS, seed=1).sized(batch=1)):
        judge.assert_conforms(case, context="row maxima lie hundreds apart")


@clause("softmax.very-negative", dtypes=("float64", "float32"))
def test_very_negative(judge: Judge) -> None:
    for case in judge.cases(
        Case(mask=MaskKind.FLOAT, mask_offset=-1e5),
        Case(mask=MaskKind.INFINITE, mask_offset=-2e5, mask_shape=MaskShape.SHARED),
        Case(scores=Scores.VERY_NEGATIVE),
        Case(scores=Scores.MOST_NEGATIVE),
        Case(scores=Scores.VERY_NEGATIVE, score_std=3.0).sized(key_length=33),
    ):
        judge.assert_conforms(case, context="every score of every row is far below zero")


@clause("softmax.late-maximum")
def test_late_maximum(judge: Judge) -> None:
    lengths = (17, 65, 129, 257)
    for case in judge.cases(*(Case(scores=Scores.RISING).sized(key_length=n) for n in lengths)):
        judge.assert_conforms(case, context="scores rise along the keys, the last one leads")


@clause("softmax.first-tile-masked")
def test_first_tile_masked(judge: Judge) -> None:
    mask = Case(mask=MaskKind.BOOL, pattern=Pattern.FIRST_TILE, mask_shape=MaskShape.SHARED, score_std=3.0)
    for case in judge.cases(*(mask.sized(key_length=n) for n in (8, 33, 129, 257))):
        judge.assert_conforms(case, context="the first half of the keys is masked")


@clause("softmax.weights")
def test_weights(judge: Judge) -> None:
    square = Sizes(batch=3, num_heads=3, query_length=3, key_length=3, d_k=4, d_v=4)
    for case in judge.cases(Case(), Case(score_std=6.0), Case(square), *MASKED):
        judge.assert_conforms(case, "weights", "output")


@clause("softmax.averaged-weights")
def test_averaged_weights(judge: Judge) -> None:
    for case in judge.cases(Case(), Case(score_std=6.0), *MASKED):
        judge.assert_conforms(case, "averaged_weights", "output")


@clause("softmax.log-sum-exp")
def test_log_sum_exp(judge: Judge) -> None:
    empty = Case(mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW)
    for case in judge.cases(Case(), Case(score_std=6.0), Case(scores=Scores.FAR_ROWS), empty, *MASKED):
        judge.assert_conforms(case, "log_sum_exp")
