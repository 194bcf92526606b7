"""Chapter 33, bucketed-bias: learned biases by head and bucket of distances."""

from dataclasses import replace

from attention_conformance.spec.cases import Case, MaskKind, Padding, Sizes
from attention_conformance.spec.features import Packing
from attention_conformance.tests.harness.judge.clause_tests import row, table

PLAIN = Case(seed=391).sized(query_length=13, key_length=14).extended(bucketed_bias=6)
SQUARE = replace(PLAIN, seed=392).sized(query_length=15, key_length=15)
GENTLE = replace(SQUARE, seed=393, score_std=0.5)
NEAR = SQUARE.extended(max_distance=5)
PAST = SQUARE.extended(bidirectional=False)
PUBLISHED = SQUARE.extended(bucketed_bias=32)
"""With the number of buckets of the published models, and no distance on the edge of two buckets."""
GROUPED = Sizes(num_heads=6, num_kv_heads=3, query_length=13, key_length=14)
CLAUSES = table(
    row(
        "bucketed-bias.scores",
        *(PLAIN, SQUARE, PUBLISHED, replace(PLAIN, sizes=GROUPED), PLAIN.sized(query_length=1, batch=3)),
        *(replace(PLAIN, seed=394, mask=MaskKind.INFINITE), replace(PLAIN, scale=0.2), PLAIN.extended(softcap=1.5)),
        *(replace(SQUARE, seed=395, causal=True), replace(PLAIN, padding=Padding.LEFT), PLAIN.extended(sinks=True)),
        *(PLAIN.extended(packing=Packing.SEGMENTS), PLAIN.extended(alibi=True)),
        context="a bias for each bucket",
    ),
    row(
        "bucketed-bias.distance",
        *(NEAR, replace(NEAR, seed=396, causal=True), PUBLISHED.extended(max_distance=11)),
        context="the largest distance is {case.extension.max_distance}",
    ),
    row(
        "bucketed-bias.directions",
        *(PAST, replace(PAST, seed=397, causal=True), PAST.extended(bucketed_bias=7)),
        context="one direction",
    ),
    row(
        "bucketed-bias.start",
        *(PLAIN.sized(query_length=n).extended(query_start=at) for n, at in ((1, 13), (3, 8), (5, 40))),
        replace(PLAIN, seed=398, causal=True).sized(query_length=3).extended(query_start=11),
        context="the first query is at position {case.extension.query_start}",
    ),
    row(
        "bucketed-bias.gradient",
        *(
            GENTLE,
            replace(GENTLE, causal=True),
            GENTLE.sized(query_length=4, batch=3),
            GENTLE.extended(bucketed_bias=32),
        ),
        parts=("gradients.bucketed_bias",),
        context="gradients by bucket",
    ),
)
