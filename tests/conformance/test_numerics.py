"""Chapter 10, numerics: how exact an answer has to be, and what may not disturb it."""

from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Pattern, Scores, Values
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import HALF, Array
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed

STEEP = Case(seed=31, score_std=3.0)
ONE_HOT = Case(scores=Scores.ONE_HOT)
SINGLE_KEY = Case(scores=Scores.EQUAL, mask=MaskKind.BOOL, pattern=Pattern.SINGLE_KEY, mask_shape=MaskShape.SHARED)
OVERFLOWING = Case(scores=Scores.OVERFLOWING)
MANY = Case(seed=41, score_std=0.1).sized(batch=8, num_heads=8, query_length=129, key_length=65, d_k=16, d_v=16)
"""Scores near 0 have small roundings, and many rows many: what moves all numbers by a quarter of a percent shows."""
BEYOND = (OVERFLOWING, replace(OVERFLOWING, seed=1).sized(key_length=9))

CLAUSES = table(
    row(
        "numerics.working-precision",
        # With d_k = 5 the scale is no number of float32.
        *(STEEP, STEEP.sized(key_length=33, d_k=16), STEEP.sized(d_k=5, d_v=5)),
        dtypes=("float64",),
        context="float64 in, less than float64 inside",
    ),
    row("numerics.peaked-rows", *(Case(seed=n, score_std=s) for n, s in enumerate((5.0, 10.0, 30.0, 100.0)))),
    row(
        "numerics.exact",
        *(ONE_HOT, ONE_HOT.sized(key_length=16), ONE_HOT.sized(query_length=16, key_length=16), SINGLE_KEY),
        exactly=True,
        context="all other weights are 0, so that one value row is the output",
    ),
    row(
        "numerics.half-range",
        *BEYOND,
        dtypes=("float16",),
        context="q . k is beyond the range of float16, the scaled score is not",
    ),
)


@clause("numerics.bound")
def test_bound(judge: Judge) -> None:
    few = (Case(seed=40 + n, score_std=1.0 + n).sized(key_length=5 + 6 * n) for n in range(4))
    judge.assert_all_conform(judge.cases(*few), *judge.parts())
    if judge.dtype in HALF and judge.claims.scope is Scope.OP:
        judge.assert_all_conform(judge.cases(MANY), *judge.parts(), context=lambda _: "roundings of many rows even out")


@clause("numerics.accumulation")
def test_accumulation(judge: Judge) -> None:
    longest = 4099 if Feature.CROSS in judge.claims else 1025  # in self-attention, as many queries come along
    few = Case().sized(batch=1, num_heads=2, query_length=2)
    # One by one in float32, equal terms all round alike; in a half type, the mean of others drowns in its bound.
    values = Values.CONSTANT if judge.dtype in HALF else Values.NORMAL
    equal = replace(few, scores=Scores.EQUAL, values=values)
    score_std = replace(few, seed=3, score_std=3.0).sized(key_length=min(2049, longest))
    # Tiles that are added in a half type need as many tiles before their roundings stand out.
    most = [equal.sized(key_length=16387)] if judge.dtype in HALF and Feature.CROSS in judge.claims else []
    # A single query, as in decoding, has a path of its own in many kernels.
    decoding = equal.sized(query_length=1, key_length=longest)
    for case in judge.cases(equal.sized(key_length=1025), decoding, score_std, *most):
        judge.assert_conforms(case, context=f"{case.sizes.key_length} keys")


@clause("numerics.overflow-shows", dtypes=("float16",))
def test_overflow_shows(judge: Judge) -> None:
    for case in judge.cases(*BEYOND):
        problem = judge.problem(case).forward_only()
        result, expected = judge.answer(case, problem), judge.solve(problem).parts["output"]
        if result is not None:
            output = result.output
            if output.shape == expected.value.shape:
                output = np.where(np.isfinite(output), output, expected.value).astype(output.dtype)
            judge.record(
                case, compare("output", output, expected, judge.dtype), "a product beyond the range of float16"
            )


@clause("numerics.nan-propagates")
def test_nan_propagates(judge: Judge) -> None:
    def with_nan(query: Array) -> Array:
        query[(0,) * query.ndim] = np.nan
        return query

    # What a machine computes at once is more than 2 numbers: a maximum over fewer keys than that may skip NaN.
    for case in judge.cases(Case(), Case(causal=True).sized(query_length=2, key_length=2)):
        try:
            output = judge.run(changed(judge.problem(case).forward_only(), query=with_nan)).output
        except CandidateError:
            judge.assert_that(case, True, "")  # a refusal hides nothing
            continue
        first = np.asarray(output, dtype=np.float64)[(0,) * (output.ndim - 1)]
        context = f"query 0 holds NaN, and its output begins with {first[0]:.3g}"
        judge.assert_that(case, bool(np.isnan(first).any()), context)
