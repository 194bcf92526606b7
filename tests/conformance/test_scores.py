"""Chapter 1, scores: the scaled dot products, and what is added to them."""

from dataclasses import replace
from math import sqrt
from statistics import NormalDist

import numpy as np

from attention_conformance.spec.cases import Case, MaskKind, Sizes
from attention_conformance.spec.conventions import DefaultScale
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed

WIDTHS = ((1, 2), (3, 5), (4, 4), (8, 3), (16, 64), (33, 31))
"""d_k and d_v."""
ADDED = Case(mask=MaskKind.FLOAT)
FALSE_ALARM = 1e-10
"""Probability that a right implementation is accused by the statistical clause, in one dtype."""


CLAUSES = table(
    row("scores.dot-product", Case(), Case(seed=1, score_std=3.0), Case(seed=2).sized(query_length=4, key_length=4)),
    row("scores.scale-default", *(Case(seed=d_k).sized(d_k=d_k, d_v=d_v) for d_k, d_v in WIDTHS)),
    row("scores.scale-explicit", *(Case(seed=3, scale=scale) for scale in (0.25, 0.37, 1.0, 2.5))),
    row(
        "scores.scale-zero",
        *(Case(scale=0.0), Case(scale=0.0, score_std=30.0, mask=MaskKind.BOOL)),
        context="with scale 0 every key that may be seen weighs the same",
    ),
    row(
        "scores.scale-negative",
        *(Case(scale=-0.4), Case(scale=-1.0, mask=MaskKind.BOOL), Case(scale=-2.0, mask=MaskKind.FLOAT)),
        # Scores so far apart that the exponential overflows where the smallest is taken for the largest.
        *(Case(seed=4, scale=-200.0, score_std=2.0), Case(seed=5, scale=-200.0, score_std=2.0, mask=MaskKind.BOOL)),
    ),
    row("scores.bias-after-scale", ADDED.sized(d_k=9), replace(ADDED, scale=0.2), replace(ADDED, scale=0.0)),
)


@clause("scores.unit-variance")
def test_unit_variance(judge: Judge) -> None:
    """Half the squared difference of two log weights has mean 1 and, given the query's length, variance 2."""
    if judge.conventions.default_scale is DefaultScale.ONE:
        judge.unsupported.append("its default scale of one leaves a variance of d_k")
        return
    sizes = Sizes(batch=64, num_heads=16, query_length=2, key_length=2, d_k=16, d_v=16)
    for case in judge.cases(Case(sizes, score_std=1.0)):
        if case.sizes.key_length < 2:
            judge.unsupported.append("two keys are needed to compare scores")
            continue
        unbiased = changed(judge.problem(case).forward_only(), b_q=np.zeros_like, b_k=np.zeros_like)
        result, s = judge.answer(case, unbiased), case.sizes
        if result is None:
            continue
        if result.weights is None or result.weights.shape != (s.batch, s.num_heads, s.query_length, s.key_length):
            judge.assert_that(case, False, "weights are not returned for every head, query and key")
            continue
        found = result.weights.astype(np.float64)[:, :, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            halves = 0.5 * (np.log(found[..., 0]) - np.log(found[..., 1])) ** 2
        deviation = sqrt((2.0 + 6.0 / s.d_k) / halves.size)
        margin = deviation * NormalDist().inv_cdf(1.0 - FALSE_ALARM / 2.0)
        message = f"scaled scores of unit-variance inputs have variance {halves.mean():.3g}, not 1 +- {margin:.2g}"
        judge.assert_that(case, bool(abs(halves.mean() - 1.0) <= margin), message)
