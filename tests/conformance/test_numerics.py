"""Chapter 10, numerics: how exact an answer has to be, and what may not disturb it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.implementations.worker.memory import output_shape
from attention_conformance.reference.arrays import Floats
from attention_conformance.reference.bounds.precision import unit_roundoff
from attention_conformance.reference.pipeline import Trace
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Pattern, Scores, Values
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import HALF, Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import clause, row, table
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.relations import changed, in_line

STEEP = Case(seed=31, score_std=3.0)
ONE_HOT = Case(scores=Scores.ONE_HOT)
SINGLE_KEY = Case(scores=Scores.EQUAL, mask=MaskKind.BOOL, pattern=Pattern.SINGLE_KEY, mask_shape=MaskShape.SHARED)
OVERFLOWING = Case(scores=Scores.OVERFLOWING)
MANY = Case(seed=41).sized(batch=8, num_heads=8, key_length=90, d_k=16, d_v=16)
"""Scores near 0 have small roundings, and many rows many: what moves all numbers by a quarter of a percent shows.

All log-sum-exps are about log 90, next to a number of either half type: stored in one, as those of a log-softmax are,
they are off by little.
"""
SPREADS = {"bfloat16": ((8, 257),), "float16": ((8, 129), (200, 129))}
"""Standard deviations of their scores in roundoffs, and how many queries there are.

By eight the weights round each for itself. By 200 the exponentials reach down to a
half, of which truncation takes most: bfloat16 has few enough digits for both.
"""
LONG = Case(seed=43, score_std=1.0).sized(batch=1, num_heads=8, query_length=33, key_length=1030, d_k=16, d_v=16)
"""The same for what is wrong in long rows only."""
SQUARE = Case(seed=44, causal=True, score_std=0.5).sized(
    batch=2, num_heads=8, query_length=160, key_length=160, d_k=16, d_v=16
)
"""Rows whose last keys are the tile that a causal kernel masks and does not skip, of 16 to 128 keys."""
LAST = 32
"""Rows of it that have a cotangent: of a gradient of all rows the last ones are a small part."""
ONE = Case().sized(batch=1, num_heads=1, d_v=4)
IN_LINE = (
    replace(ONE, seed=6).sized(query_length=1, key_length=16387),
    replace(ONE, seed=8).sized(query_length=8195, key_length=4),
)
"""Many keys, and many queries; what is added in float16 is rounded to one side with these seeds.

There are 17 blocks of 512 queries, whose sums some kernels store in the half type: a part of what states are allowed.
"""
SIZES = {"bfloat16": 2.0**18, "float16": 0.5}
"""Factors of their values and cotangents: in bfloat16 all sums are beyond the range of float16, in float16 none is."""
TALL = {"bfloat16": (170.0, 1.0), "float16": (200.0, 1.0)}
"""Factors of their first keys: the exponentials of many keys are a part of the largest one, and their sum is small."""
PAST_FLOAT16 = IN_LINE[0].sized(key_length=69635)
"""Keys whose exponentials, 1 and a tenth less in turn, add up to more than the largest number of float16."""
NEAR_16 = Case(seed=79, score_std=1.0).sized(query_length=8, key_length=8, d_k=16, d_v=16)
"""Its scores are moved to about 16, where a half type has few digits left for what makes the weights differ."""
SUMS = "terms of one sign, sum after sum"
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
        cases = judge.cases(*many(judge.dtype), *([LONG] if Feature.CROSS in judge.claims else []))
        judge.assert_all_conform(cases, *judge.parts(), context=lambda _: "roundings of many rows even out")
        for case in judge.cases(*([SQUARE] if Feature.CAUSAL in judge.claims else [])):
            problem = changed(judge.problem(case), cotangent=_of_last_rows)
            _assert_answer(judge, case, problem, f"the last {LAST} of {case.sizes.query_length} rows")


def _of_last_rows(cotangent: Array) -> Array:
    cotangent[..., :-LAST, :] = 0.0
    return cotangent


def many(dtype: str) -> list[Case]:
    """`MANY` with the scores that suit a half type."""
    return [
        replace(MANY, score_std=spread * unit_roundoff(dtype)).sized(query_length=queries)
        for spread, queries in SPREADS[dtype]
    ]


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
    if most and judge.claims.scope is Scope.OP:
        _assert_sums_of_one_sign(judge)


def _assert_sums_of_one_sign(judge: Judge) -> None:
    """Sums over keys, and over queries, of so many terms of one sign that a half type loses digits or its range."""
    for proposed, tall in zip(IN_LINE, TALL[judge.dtype], strict=True):
        for case in judge.cases(proposed):
            _assert_answer(judge, case, in_line(judge.problem(case), SIZES[judge.dtype], tall), SUMS)
    for case in judge.cases(PAST_FLOAT16) if judge.dtype == "bfloat16" else ():
        _assert_answer(judge, case, in_line(judge.problem(case).forward_only(), 1.0), SUMS)


def _assert_answer(judge: Judge, case: Case, problem: Problem, context: str) -> None:
    result = judge.answer(case, problem, context)
    if result is not None:
        expected = judge.solve(problem).parts
        judge.compare(case, result, expected, judge.expanded(("output", "gradients"), problem), context)


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


@clause("numerics.score-precision", dtypes=HALF)
def test_score_precision(judge: Judge) -> None:
    capped = [NEAR_16.extended(softcap=50.0)] if Feature.SOFTCAP in judge.claims else []
    for case in judge.cases(NEAR_16, *capped):
        problem = judge.problem(case).forward_only()
        problem = changed(problem, query=_near(4.0), key=_near(4.0))
        result, solution = judge.answer(case, problem), judge.solve(problem)
        if result is None or not judge.fits(case, result, output_shape(problem)):
            continue
        right, rounded = solution.trace.output, _with_rounded_scores(solution.trace, problem)
        share = np.linalg.norm(result.output.astype(np.float64) - right) / np.linalg.norm(rounded - right)
        message = f"scores are rounded to {judge.dtype} before the softmax"
        judge.assert_that(case, bool(share < 0.5), message, f"the output has {share:.2f} of the error that this makes")


def _near(root: float) -> Callable[[Array], Array]:
    """Rows whose first numbers alone give scaled products of the square of this root."""

    def near(rows: Array) -> Array:
        rows[..., 0] = root * rows.shape[-1] ** 0.25
        return rows

    return near


def _with_rounded_scores(trace: Trace, problem: Problem) -> Floats:
    scores = trace.scores.astype(problem.query.dtype).astype(np.float64)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True) @ trace.value)


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
