"""Chapter 34, latent: one row for each token gives the answer of the keys and values that are made of it."""

from dataclasses import replace

from attention_conformance.spec.cases import Case, Padding, Scores, Sizes
from attention_conformance.tests.harness.judge.clause_tests import row, table

PLAIN = Case(seed=401).sized(d_k=6, d_v=4).extended(latent=7, decoupled=2)
BARE = replace(PLAIN, seed=402).extended(decoupled=0)
"""Without a rotary part."""
WIDER = replace(BARE, score_std=4.0)
LONG = BARE.sized(batch=1, num_heads=2, key_length=67)
EQUAL = replace(PLAIN, seed=403, scores=Scores.EQUAL)
ROTARY = PLAIN.sized(d_k=8).extended(decoupled=6)
LENGTHS = replace(PLAIN, seed=404, padding=Padding.LENGTHS).sized(batch=3, key_length=11)
CAUSAL = replace(PLAIN, seed=405, causal=True)
FEW_TERMS = Sizes(batch=1, num_heads=2, query_length=1, key_length=2, d_k=3, d_v=1)
FEW = replace(PLAIN, sizes=FEW_TERMS, seed=445, scale=0.3).extended(latent=1)
"""Sums of few terms, of which bfloat16 leaves something."""
PUBLISHED = PLAIN.sized(batch=1, num_heads=2, query_length=2, key_length=5, d_k=192, d_v=128)
CONTEXT = "a latent of {case.extension.latent}, {case.extension.decoupled} rotary components"

CLAUSES = table(
    row("latent.scores", BARE, WIDER, LONG, BARE.sized(query_length=1, num_heads=5), context=CONTEXT),
    row("latent.rotary", ROTARY, replace(ROTARY, score_std=4.0), ROTARY.sized(query_length=1), context=CONTEXT),
    row("latent.scale", PLAIN, replace(PLAIN, score_std=4.0), ROTARY, PLAIN.extended(latent=19), context=CONTEXT),
    row("latent.values", EQUAL, EQUAL.sized(key_length=67), EQUAL.sized(num_heads=7), context=CONTEXT),
    row(
        "latent.widths",
        PUBLISHED.extended(latent=512, decoupled=64),
        *(PLAIN.sized(d_k=d_k, d_v=d_v).extended(latent=r) for d_k, d_v, r in ((5, 9, 3), (3, 3, 3), (9, 2, 11))),
        context=CONTEXT,
    ),
    row("latent.causal", CAUSAL, CAUSAL.sized(query_length=7), replace(CAUSAL, scale=0.3), context=CONTEXT),
    row("latent.lengths", LENGTHS, LENGTHS.sized(query_length=1), context=CONTEXT),
    row(
        "latent.gradients",
        *(PLAIN, BARE, ROTARY, EQUAL, WIDER.sized(key_length=11), CAUSAL, LENGTHS.sized(query_length=1), FEW),
        parts=("gradients",),
        context=CONTEXT,
    ),
    row(
        "latent.decode",
        *(replace(LENGTHS, causal=True).sized(query_length=length) for length in (1, 2)),
        context=CONTEXT,
    ),
)
