"""Aligned bounds: right styles stay within them in half types, and mistakes that all elements share do not."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from attention_conformance.reference.expected import Expected, solve
from attention_conformance.spec.cases import Case, Scores, Values
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Array
from attention_conformance.tests.conformance.test_numerics import IN_LINE, SIZES, TALL, many
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.relations import in_line
from attention_conformance.tests.selftest.reference.half_margins import PARTS, answers_of
from attention_conformance.tests.selftest.reference.half_styles import RIGHT, Style

SQUARE = Case(seed=3).sized(batch=2, num_heads=2, query_length=131, key_length=131, d_k=8, d_v=8)
FEW = Case(seed=5, score_std=2.0).sized(batch=1, num_heads=2, query_length=7, key_length=33, d_k=16, d_v=16)
EQUAL = replace(FEW, scores=Scores.EQUAL)
CONSTANT = replace(FEW, values=Values.CONSTANT)
HALVES = ("bfloat16", "float16")
COMPOSED = ("eager", "written out", "log-softmax", "divided last", "wide softmax")
"""Styles that store most."""


@cache
def expected(case: Case, dtype: str) -> Mapping[str, Expected]:
    return solve(build(case, dtype), returned=()).parts


def ratios(answers: Mapping[str, Array], parts: Mapping[str, Expected]) -> list[float]:
    errors = {part: answers[part].astype(np.float64) - parts[part].value for part in PARTS}
    return [each.ratio(errors[part]) for part in PARTS for each in parts[part].aligned]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", [FEW, EQUAL, CONSTANT, SQUARE], ids=["few", "equal", "constant", "square"])
def test_right_styles_stay_within_the_bounds(case: Case, dtype: str) -> None:
    parts, problem = expected(case, dtype), build(case, dtype)
    for name, style in RIGHT.items():
        own = ratios(answers_of(style, problem), parts)
        assert max(own) < 0.5, name


@pytest.mark.parametrize("dtype", HALVES)
def test_styles_that_store_most_are_right_where_all_roundings_agree(dtype: str) -> None:
    alike = [in_line(build(case, dtype), SIZES[dtype], by) for case, by in zip(IN_LINE, TALL[dtype], strict=True)]
    for problem in (*alike, *(build(case, dtype) for case in many(dtype))):
        parts = solve(problem, returned=()).parts
        for name in COMPOSED:
            answers = answers_of(RIGHT[name], problem)
            worst = max(compare(part, answers[part], parts[part], dtype).worst for part in PARTS)
            assert worst < 0.9, name


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("case", [FEW, EQUAL, CONSTANT, FEW.sized(num_heads=4, num_kv_heads=2)], ids=str)
def test_what_is_known_at_once_is_less_than_the_whole_bound(case: Case, dtype: str) -> None:
    for part in expected(case, dtype).values():
        assert all(each.least < each.bound for each in part.aligned)


def test_what_is_not_worked_out_is_below_what_is_known() -> None:
    parts, problem = expected(SQUARE, "bfloat16"), build(SQUARE, "bfloat16")
    answers = answers_of(RIGHT["eager"], problem)
    for part, known in product(PARTS, (0.0, 0.01, 0.1, 1.0)):
        whole, brief = (compare(part, answers[part], parts[part], "bfloat16", share).worst for share in (0.0, known))
        assert max(known, brief) == max(known, whole)


@pytest.mark.parametrize("dtype", HALVES)
def test_a_wrong_scale_moves_everything_in_one_direction(dtype: str) -> None:
    parts, problem = expected(SQUARE, dtype), build(SQUARE, dtype)
    output = answers_of(Style(factor=1.02), problem)["output"]
    outcome = compare("output", output, parts["output"], dtype)
    assert outcome.worst > 1.0
    if dtype == "bfloat16":
        assert "output is off by +0.0" in outcome.message
        assert "each alone is within its own bound" in outcome.message


@pytest.mark.parametrize("part", PARTS)
def test_an_answer_of_the_wrong_size(part: str) -> None:
    right, dtype = expected(SQUARE, "bfloat16")[part], build(SQUARE, "bfloat16").query.dtype
    outcome = compare(part, (0.95 * right.value).astype(dtype), right, "bfloat16")
    assert "-0.05 times its size" in outcome.message


@pytest.mark.parametrize("part", ["gradients.query", "gradients.key"])
def test_a_backward_pass_that_takes_too_much_of_the_mean_away(part: str) -> None:
    right = expected(many("bfloat16")[0], "bfloat16")[part]
    along = right.aligned[-1].direction
    outcome = compare(part, (right.value - 0.03 * along).astype(DTYPES["bfloat16"]), right, "bfloat16")
    assert "-0.03 times a change of D" in outcome.message


@pytest.mark.parametrize("part", ["output", "gradients.query"])
def test_weights_and_gradients_that_are_truncated_move_everything_in_one_direction(part: str) -> None:
    problem, parts = build(many("bfloat16")[0], "bfloat16"), expected(many("bfloat16")[0], "bfloat16")
    shrunk = ((1.0 - 0.0028) * parts[part].value.astype(np.float32)).astype(problem.query.dtype)
    assert compare(part, shrunk, parts[part], "bfloat16").worst > 1.0
    for name in ("eager", "SDPA, fused", str(Style(tile=16))):
        assert max(ratios(answers_of(RIGHT[name], problem), parts)) < 0.2, name


def test_equal_scores_are_one_rounding_and_not_many() -> None:
    """All weights round alike then: the bound does not fall with their number."""
    limits = []
    for length in (16, 256):
        (size,) = expected(EQUAL.sized(key_length=length, num_heads=1), "bfloat16")["output"].aligned
        limits.append(size.limit)
    assert limits[1] > 0.5 * limits[0]


def test_where_there_are_none() -> None:
    for case in (replace(FEW, score_std=100.0), FEW.extended(softcap=2.0), FEW.extended(sinks=True)):
        assert not any(part.aligned for part in expected(case, "bfloat16").values())
    assert not any(part.aligned for part in expected(FEW, "float32").values())
    assert any(part.aligned for part in expected(FEW.extended(window_left=3), "bfloat16").values())
