"""Chapter 2, softmax: normalisation over the keys, stable for any finite scores, and the parts that are returned."""

from dataclasses import replace

from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Scores, Sizes, Values
from attention_conformance.spec.inputs import LEAD
from attention_conformance.tests.harness.judge.clause_tests import row, table

MASKED = (
    Case(mask=MaskKind.BOOL),
    Case(mask=MaskKind.INFINITE, mask_shape=MaskShape.HEAD),
    Case(padding=Padding.LEFT),
    Case(causal=True).sized(query_length=7),
)
"""One case of each kind of mask, for those that claim it."""
CONSTANT = Case(values=Values.CONSTANT)
STEEP = Case(score_std=3.0)
SQUARE = Sizes(batch=3, num_heads=3, query_length=3, key_length=3, d_k=3, d_v=3)
EQUAL_WIDTHS = Sizes(batch=3, num_heads=3, query_length=3, key_length=3, d_k=4, d_v=4)
VERY_NEGATIVE = (
    Case(mask=MaskKind.FLOAT, mask_offset=-1e5),
    Case(mask=MaskKind.INFINITE, mask_offset=-2e5, mask_shape=MaskShape.SHARED),
    Case(scores=Scores.VERY_NEGATIVE),
    Case(scores=Scores.MOST_NEGATIVE),
    Case(scores=Scores.VERY_NEGATIVE, score_std=3.0).sized(key_length=33),
)
FIRST_MASKED = Case(mask=MaskKind.BOOL, pattern=Pattern.FIRST_TILE, mask_shape=MaskShape.SHARED, score_std=3.0)
EMPTY = Case(mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW)


def _largest(case: Case) -> str:
    return f"scores as large as {LEAD * case.sizes.d_k**0.5:.0f}"


CLAUSES = table(
    row(
        "softmax.rows-sum-to-one",
        *(CONSTANT, CONSTANT.sized(d_k=16), Case(values=Values.CONSTANT, mask=MaskKind.BOOL)),
        context="with equal value rows, weights that sum to 1 give that row",
    ),
    row("softmax.rows-sum-to-one", Case(), *MASKED, parts=("weights",), context="the weights of a row sum to 1"),
    row("softmax.over-keys", STEEP, Case(SQUARE, score_std=3.0), STEEP.sized(key_length=13)),
    row(
        "softmax.large-scores",
        *(Case(scores=Scores.ONE_HOT), Case(scores=Scores.ONE_HOT, seed=1).sized(key_length=16)),
        context=_largest,
    ),
    row(
        "softmax.row-maximum",
        *(Case(scores=Scores.FAR_ROWS), Case(scores=Scores.FAR_ROWS, seed=1).sized(batch=1)),
        context="row maxima lie hundreds apart",
    ),
    row(
        "softmax.very-negative",
        *VERY_NEGATIVE,
        dtypes=("float64", "float32"),
        context="every score of every row is far below zero",
    ),
    row(
        "softmax.late-maximum",
        *(Case(scores=Scores.RISING).sized(key_length=n) for n in (17, 65, 129, 257)),
        context="scores rise along the keys, the last one leads",
    ),
    row(
        "softmax.first-tile-masked",
        *(FIRST_MASKED.sized(key_length=n) for n in (8, 33, 129, 257)),
        replace(FIRST_MASKED, mask=MaskKind.INFINITE).sized(key_length=257),
        context="the first half of the keys is masked",
    ),
    row("softmax.weights", Case(), Case(score_std=6.0), Case(EQUAL_WIDTHS), *MASKED, parts=("weights", "output")),
    row("softmax.averaged-weights", Case(), Case(score_std=6.0), *MASKED, parts=("averaged_weights", "output")),
    row(
        "softmax.log-sum-exp",
        *(Case(), Case(score_std=6.0), Case(scores=Scores.FAR_ROWS), EMPTY, *MASKED),
        parts=("log_sum_exp",),
    ),
)
