"""Chapter 3, values: the output is the weighted sum of the value rows."""

from attention_conformance.spec.cases import Case, Scores
from attention_conformance.tests.harness.judge.clause_tests import row, table

SCALED = (Case(seed=5, value_scale=scale) for scale in (0.001, 1.0, 100.0))
ONE_KEY = Case(scores=Scores.EQUAL).sized(key_length=1)

CLAUSES = table(
    row("values.weighted-sum", *SCALED, Case(scores=Scores.EQUAL)),
    row("values.width", *(Case(seed=6).sized(d_v=d_v) for d_v in (1, 2, 7, 16))),
    row("values.single-key", Case(score_std=5.0).sized(key_length=1), context="a single key has weight 1"),
    row("values.single-key", ONE_KEY, exactly=True, context="a single key has weight 1: its value is the output"),
)
