"""Chapter 3, values: the output is the weighted sum of the value rows."""

from __future__ import annotations

from attention_conformance.spec.cases import Case, Scores
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.judge import Judge


@clause("values.weighted-sum")
def test_weighted_sum(judge: Judge) -> None:
    sizes = (0.001, 1.0, 100.0)
    for case in judge.cases(*(Case(seed=5, value_scale=scale) for scale in sizes), Case(scores=Scores.EQUAL)):
        judge.assert_conforms(case)


@clause("values.width")
def test_width(judge: Judge) -> None:
    for case in judge.cases(*(Case(seed=6).sized(d_v=d_v) for d_v in (1, 2, 7, 16))):
        judge.assert_conforms(case)


@clause("values.single-key")
def test_single_key(judge: Judge) -> None:
    for case in judge.cases(Case(score_std=5.0).sized(key_length=1)):
        judge.assert_conforms(case, context="a single key has weight 1")
    for case in judge.cases(Case(scores=Scores.EQUAL).sized(key_length=1)):
        judge.assert_conforms(case, exactly=True, context="a single key has weight 1, so that its value is the output")
