"""Chapter 29, qk-norm: queries and keys divided by their size before they are multiplied."""

from dataclasses import replace

from attention_conformance.spec.cases import Case, MaskKind, Padding, Scores, Sizes
from attention_conformance.spec.features import QkNorm
from attention_conformance.tests.harness.judge.clause_tests import row, table

NORMED = Case(seed=351, score_std=6.0).extended(qk_norm=QkNorm.HEAD)
"""Queries and keys are some times as large as normalised ones, or the norm would hardly change them."""
SMALL = replace(NORMED, seed=352, score_std=0.3)
MASKED = replace(NORMED, seed=353, mask=MaskKind.BOOL)
GROUPED = replace(NORMED, seed=354, sizes=Sizes(num_heads=6, num_kv_heads=3))
EPSILON = replace(SMALL, seed=355).extended(norm_epsilon=0.25)
ROTATED = replace(NORMED, seed=356).extended(rotary_base=50.0)
FEW = replace(NORMED, seed=361, scale=0.3).sized(batch=1, num_heads=1, query_length=2, key_length=2, d_k=2, d_v=1)
"""Sums of few terms, of which bfloat16 leaves something."""
PARTS_OF_GAIN = (
    replace(FEW, seed=378).sized(num_heads=2, query_length=1),
    replace(FEW, seed=361).sized(batch=5, query_length=1),
)
"""The same with two heads, and with several samples, whose parts of the gradient of a gain are added."""
WIDE_HEADS = replace(NORMED, seed=357).sized(d_k=40, d_v=24, num_heads=2)

CLAUSES = table(
    row(
        "qk-norm.scores",
        *(NORMED, SMALL, MASKED, WIDE_HEADS, NORMED.sized(num_heads=1), NORMED.sized(query_length=1, batch=3)),
        replace(NORMED, seed=358, causal=True).sized(query_length=7),
        replace(NORMED, seed=359, scale=0.3, padding=Padding.LEFT),
        context="queries and keys normalised",
    ),
    row(
        "qk-norm.epsilon",
        *(
            EPSILON,
            EPSILON.extended(norm_epsilon=0.01),
            replace(EPSILON, score_std=0.05),
            MASKED.extended(norm_epsilon=2.0),
        ),
        context="epsilon = {case.extension.norm_epsilon}",
    ),
    row(
        "qk-norm.zeros",
        *(replace(NORMED, scores=Scores.EQUAL), replace(MASKED, scores=Scores.EQUAL)),
        context="a query of zeros",
    ),
    row(
        "qk-norm.range",
        *(replace(NORMED, score_std=std) for std in (3e5, 8e4, 1e-7)),
        context="rows of the size {case.score_std} ** 0.5",
    ),
    row(
        "qk-norm.rotary",
        *(ROTATED, replace(ROTATED, seed=360, causal=True).sized(query_length=7)),
        context="normalised, then rotated",
    ),
    row("qk-norm.grouped", GROUPED, GROUPED.sized(num_kv_heads=1), GROUPED.sized(num_kv_heads=2, d_k=6)),
    row(
        "qk-norm.gradient",
        *(NORMED, MASKED, EPSILON, ROTATED, GROUPED),
        parts=("gradients.query", "gradients.key"),
        context="gradients through the sizes",
    ),
    row(
        "qk-norm.gain-gradient",
        *(NORMED, GROUPED, ROTATED, FEW, *PARTS_OF_GAIN),
        parts=("gradients.query_norm", "gradients.key_norm"),
        context="gradients of the gains",
    ),
)
