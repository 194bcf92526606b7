"""Chapter 28, merge: keys that are answered in splits and merged give the answer over all of them."""

from dataclasses import replace

from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding, Pattern, Scores
from attention_conformance.spec.gates_and_splits import KeySplits
from attention_conformance.tests.harness.judge.clause_tests import row, table

PAIR = Case(seed=341).extended(key_splits=KeySplits.PAIR)
MANY = Case(seed=342, score_std=3.0).sized(key_length=11).extended(key_splits=KeySplits.MANY)
EMPTY = Case(seed=343).extended(key_splits=KeySplits.EMPTY)
MASKED = replace(PAIR, seed=344, mask=MaskKind.BOOL)
WHOLE_SPLITS = [
    replace(MASKED, mask_shape=MaskShape.SHARED, pattern=pattern) for pattern in (Pattern.FIRST_TILE, Pattern.LAST_KEY)
]
"""Masks that leave some queries no key of the first split, and no key but the last."""
CAUSAL = replace(PAIR, seed=345, causal=True).sized(query_length=7)
"""As many keys as queries."""
SINKS = PAIR.extended(sinks=True)
BOTH = ("output", "log_sum_exp")

CLAUSES = table(
    row(
        "merge.splits",
        *(PAIR, MANY, MANY.sized(query_length=1), replace(MANY, score_std=0.3).sized(key_length=67, num_heads=2)),
        *(PAIR.sized(key_length=1), PAIR.sized(key_length=2), PAIR.sized(num_heads=6, num_kv_heads=2)),
        replace(MANY, mask=MaskKind.FLOAT),
        context="in splits ({case.extension.key_splits})",
    ),
    row(
        "merge.log-sum-exp",
        *(PAIR, MANY, MANY.sized(query_length=1), MANY.sized(key_length=67, num_heads=2)),
        parts=("log_sum_exp",),
        context="in splits ({case.extension.key_splits})",
    ),
    row(
        "merge.empty-split",
        *(EMPTY, replace(EMPTY, score_std=4.0), EMPTY.sized(key_length=1), EMPTY.sized(query_length=1)),
        *WHOLE_SPLITS,
        *(replace(PAIR, padding=Padding.LEFT), replace(MANY, padding=Padding.RIGHT)),
        parts=BOTH,
        context="a split without keys adds nothing",
    ),
    row(
        "merge.empty-row",
        *(replace(MASKED, pattern=Pattern.EMPTY_ROW), replace(EMPTY, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW)),
        replace(PAIR, padding=Padding.EMPTY_SAMPLE),
        parts=BOTH,
        context="no split has a key for this query",
    ),
    row(
        "merge.far",
        *(replace(PAIR, scores=Scores.VERY_NEGATIVE), replace(MANY, scores=Scores.VERY_NEGATIVE)),
        *(replace(PAIR, score_std=1000.0), replace(MANY, score_std=1000.0)),
        context="log-sum-exps far from 0",
    ),
    row(
        "merge.causal",
        *(CAUSAL, CAUSAL.sized(query_length=11, key_length=11).extended(key_splits=KeySplits.MANY)),
        CAUSAL.sized(query_length=4, key_length=4, batch=3),
        parts=BOTH,
        context="positions count through all splits",
    ),
    row(
        "merge.sinks",
        *(SINKS, MANY.extended(sinks=True), EMPTY.extended(sinks=True)),
        parts=BOTH,
        context="a sink counts once",
    ),
    row("merge.gradient", PAIR, MANY, MASKED, EMPTY, parts=("gradients",), context="gradients through the merge"),
)
