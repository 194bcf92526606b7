"""Chapter 6, cross-attention: queries from one sequence, keys and values from another."""

from __future__ import annotations

from spec.cases import Case, MaskKind
from tests.harness.judge import Judge
from tests.harness.suite import clause


@clause("cross-attention.sources")
def test_sources(judge: Judge) -> None:
    for case in judge.cases(Case(seed=21), Case(seed=22).sized(query_length=6, key_length=6)):
        judge.assert_conforms(case)


@clause("cross-attention.lengths")
def test_lengths(judge: Judge) -> None:
    for case in judge.cases(*(Case(seed=23).sized(query_length=q, key_length=k) for q, k in ((3, 8), (8, 3), (2, 31)))):
        judge.assert_conforms(case)


@clause("cross-attention.single-query")
def test_single_query(judge: Judge) -> None:
    for case in judge.cases(
        *(Case(seed=24, spread=3.0).sized(query_length=1, key_length=k) for k in (1, 7, 65)),
        Case(seed=25, mask=MaskKind.BOOL).sized(query_length=1),
    ):
        judge.assert_conforms(case)


@clause("cross-attention.key-value")
def test_key_value(judge: Judge) -> None:
    for case in judge.cases(Case(seed=26).sized(d_k=4, d_v=4), Case(seed=27, value_scale=10.0).sized(d_k=4, d_v=4)):
        judge.assert_conforms(case, said="keys make the scores, values are summed")


@clause("cross-attention.widths")
def test_widths(judge: Judge) -> None:
    for case in judge.cases(Case(seed=28), Case(seed=29).sized(num_heads=2, d_k=7)):
        judge.assert_conforms(case)
