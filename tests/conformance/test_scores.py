"""Chapter 1, scores: the scaled dot products, and what is added to them."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.spec.cases import Case, MaskKind, Sizes
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed

FALSE_ALARM = 1e-10
"""Probability that a right implementation is accused by the statistical clause, in one dtype."""


@clause("scores.dot-product")
def test_dot_product(judge: Judge) -> None:
    for case in judge.cases(Case(), Case(seed=1, score_std=3.0), Case(seed=2).sized(query_length=4, key_length=4)):
        judge.assert_conforms(case)


@clause("scores.scale-default")
def test_scale_default(judge: Judge) -> None:
    widths = ((1, 2), (3, 5), (4, 4), (8, 3), (16, 64), (33, 31))
    for case in judge.cases(*(Case(seed=d_k).sized(d_k=d_k, d_v=d_v) for d_k, d_v in widths)):
        judge.assert_conforms(case)


@clause("scores.scale-explicit")
def test_scale_explicit(judge: Judge) -> None:
    for case in judge.cases(*(Case(seed=3, scale=scale) for scale in (0.25, 0.37, 1.0, 2.5))):
        judge.assert_conforms(case)


@clause("scores.scale-zero")
def test_scale_zero(judge: Judge) -> None:
    for case in judge.cases(Case(scale=0.0), Case(scale=0.0, score_std=30.0, mask=MaskKind.BOOL)):
        judge.assert_conforms(case, context="with scale 0 every key that may be seen weighs the same")


@clause("scores.scale-negative")
def test_scale_negative(judge: Judge) -> None:
    plain = (Case(scale=-0.4), Case(scale=-1.0, mask=MaskKind.BOOL), Case(scale=-2.0))
    # Scores so far apart that the exponential overflows where the least of them is taken for the largest.
    wide = (Case(seed=4, scale=-200.0, score_std=2.0), Case(seed=5, scale=-200.0, score_std=2.0, mask=MaskKind.BOOL))
    for case in judge.cases(*plain, *wide):
        judge.assert_conforms(case)


@clause("scores.bias-after-scale")
def test_bias_after_scale(judge: Judge) -> None:
    mask = MaskKind.FLOAT
    for case in judge.cases(Case(mask=mask).sized(d_k=9), Case(mask=mask, scale=0.2), Case(mask=mask, scale=0.0)):
        judge.assert_conforms(case)


@clause("scores.unit-variance")
def test_unit_variance(judge: Judge) -> None:
    """Half the squared difference of two log weights has mean 1 and, given the query's length, variance 2."""
    sizes = Sizes(batch=64, num_heads=16, query_length=2, key_length=2, d_k=16, d_v=16)
    for case in judge.cases(Case(sizes, score_std=1.0)):
        try:
            unbiased = changed(judge.problem(case).forward_only(), b_q=np.zeros_like, b_k=np.zeros_like)
            weights = judge.run(unbiased).weights
        except CandidateError as error:
            judge.record_error(case, error)
            continue
        found = np.asarray(weights, dtype=np.float64)[:, :, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            halves = 0.5 * (np.log(found[..., 0]) - np.log(found[..., 1])) ** 2
        score_std = sqrt((2.0 + 6.0 / case.sizes.d_k) / halves.size)
        margin = score_std * NormalDist().inv_cdf(1.0 - FALSE_ALARM / 2.0)
        judge.assert_that(
            case,
            bool(abs(halves.mean() - 1.0) <= margin),
            f"scaled scores of unit-variance inputs have variance {halves.mean():.3g}, not 1 +- {margin:.2g}",
        )
