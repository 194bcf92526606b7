"""The bounds let every correct style of computing through, and no wrong answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pytest
import torch

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.reference.bounds.precision import precision, unit_roundoff
from attention_conformance.reference.expected import Expected, Solution, solve
from attention_conformance.spec.cases import (
    Case,
    MaskKind,
    ModuleForm,
    Padding,
    Pattern,
    Poison,
    Scores,
    Sharing,
    Sizes,
)
from attention_conformance.spec.conventions import Conventions, SoftmaxPrecision
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Array, Problem
from attention_conformance.tests.selftest.reference.styles import (
    CORRECT,
    LOST_DIGITS,
    SHORT,
    TEXTBOOK,
    WRONG,
    Style,
    backward,
    output_of,
    with_one_mask,
)
from attention_conformance.tests.selftest.spec.draws import GENTLE, ORDINARY, POINTED, drawn_case

TEETH = 3.0
"""A wrong answer must lie this many bounds away, so that a doubled bound would still refuse it."""
LONG = [drawn_case(number) for number in range(40)]
BRIEF = [drawn_case(number, longest=17) for number in range(40)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads take longer to wait for each other than these small products take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def solved(case: Case, dtype: str) -> tuple[Problem, Solution]:
    problem = build(case, dtype)
    return problem, solve(problem)


def worst(found: Array, expected: Expected) -> float:
    """The largest distance in bounds; infinite where a bound of 0 is missed."""
    distance = np.abs(found.astype(np.float64) - expected.value)
    with np.errstate(divide="ignore"):
        ratios = np.divide(distance, expected.bound, out=np.zeros_like(distance), where=distance != 0.0)
    return float(ratios.max(initial=0.0))


def worst_of_style(style: Style, case: Case, dtype: str) -> float:
    problem, solution = solved(case, dtype)
    return worst(output_of(style, problem), solution.parts["output"])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CORRECT)
def test_correct_styles_stay_below_the_bound(name: str, dtype: str) -> None:
    ratios = {case: worst_of_style(CORRECT[name], case, dtype) for case in (*LONG, *BRIEF)}
    assert max(ratios.values()) < 1.0, max(ratios, key=lambda case: ratios[case])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SHORT)
def test_states_may_be_stored_for_few_keys(name: str, dtype: str) -> None:
    assert max(worst_of_style(SHORT[name], case, dtype) for case in BRIEF) < 1.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_and_log_sum_exp_stay_below_their_bounds(dtype: str) -> None:
    run = torch_op(TEXTBOOK.answer, extras=("weights", "log_sum_exp"))
    for case in (*LONG, *BRIEF):
        problem, solution = solved(case, dtype)
        result = run(with_one_mask(problem).forward_only(), "cpu")
        assert result.weights is not None
        assert result.log_sum_exp is not None
        assert worst(result.weights, solution.parts["weights"]) < 1.0
        lse, rows = solution.parts["log_sum_exp"], solution.trace.seen.allowed.any(-1)
        assert worst(result.log_sum_exp[rows], Expected(lse.value[rows], lse.bound[rows])) < 1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("centred_by", ["weights", "output"])
def test_correct_gradients_stay_below_their_bounds(centred_by: str, dtype: str) -> None:
    for case in (*LONG, *BRIEF):
        problem, solution = solved(case, dtype)
        for name, gradient in backward(problem, centred_by).items():
            assert worst(gradient, solution.parts[f"gradients.{name}"]) < 1.0, case


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_answers_exceed_the_bound(name: str, dtype: str) -> None:
    assert max(worst_of_style(WRONG[name], case, dtype) for case in POINTED) >= TEETH


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("weights in bfloat16", "float32"), ("weights in bfloat16", "float64"), ("1e-6 in the denominator", "float64")],
)
def test_lost_digits_exceed_the_bound(name: str, dtype: str) -> None:
    assert worst_of_style(LOST_DIGITS[name], ORDINARY, dtype) >= TEETH


@pytest.mark.parametrize("dtype", DTYPES)
def test_wrong_gradients_exceed_the_bound(dtype: str) -> None:
    problem, solution = solved(GENTLE, dtype)
    uncentred = backward(problem, "nothing")
    for name in ("query", "key"):
        part = solution.parts[f"gradients.{name}"]
        assert worst(uncentred[name], part) >= TEETH
        assert worst(np.zeros_like(part.value), part) >= TEETH


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bound_never_passes_the_attended_values(dtype: str) -> None:
    """However uncertain the scores, an average stays within its values, but for its own roundings."""
    _, solution = solved(Case(scores=Scores.VERY_NEGATIVE, mask=MaskKind.BOOL, score_std=30.0), dtype)
    value, part = solution.trace.value, solution.parts["output"]
    score_std = (value.max(2) - value.min(2))[:, :, None]
    assert np.isfinite(part.bound).all()
    rounding = precision(dtype).weight_error(7) + 2.0 * unit_roundoff(dtype)
    assert (part.bound <= score_std + 4.0 * (1.0 + rounding) * np.abs(value).max()).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_beyond_all_precision_leave_finite_bounds(dtype: str) -> None:
    """Where rounding may move a score by hundreds, the exact sums overflow; the bounds may not."""
    sizes = Sizes(key_length=40, d_k=64)
    for case in (Case(sizes=sizes, score_std=1000.0), Case(sizes=sizes, mask=MaskKind.FLOAT, mask_offset=-3e4)):
        problem, solution = solved(case, dtype)
        assert worst_of_style(TEXTBOOK, case, dtype) < 1.0
        for name in ("output", "weights", "log_sum_exp", *(f"gradients.{n}" for n in problem.needs)):
            assert np.isfinite(solution.parts[name].bound).all(), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_key_too_faint_for_float64_may_come_to_light(dtype: str) -> None:
    """Scores 2048 apart: the reference's weight is 0, yet in bfloat16 rounding alone may tip the scales."""
    query, key = np.array([[[[16.0]]]]), np.array([[[[16384.0], [16256.0]]]])
    parts = build(Case(sizes=Sizes(1, 1, 1, 2, 1, 1)), dtype)
    arrays = {"query": query, "key": key, "value": np.array([[[[1.0], [-1.0]]]])}
    problem = parts.with_arrays({n: a.astype(DTYPES[dtype]) for n, a in arrays.items()}).forward_only()
    bound = float(solve(problem).parts["output"].bound[0, 0, 0, 0])
    assert (bound >= 2.0) == (dtype == "bfloat16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_garbage_does_not_reach_the_bounds(dtype: str) -> None:
    form = ModuleForm(Sharing.NONE, 5, 6, 7, 3, bias=True, output_projection=True, output_bias=True)
    for module in (None, form):
        case = Case(module=module, padding=Padding.RIGHT, poison=Poison.NAN)
        problem = build(case, dtype)
        if module is not None:
            key, value = problem.key.copy(), problem.value.copy()
            key[:, -2:], value[:, -2:] = np.nan, np.nan
            problem = problem.with_arrays({"key": key, "value": value})
        for name in ("output", "weights", "log_sum_exp"):
            assert np.isfinite(solve(problem.forward_only()).parts[name].bound).all(), name


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_without_keys_have_no_room(dtype: str) -> None:
    problem, solution = solved(Case(mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW), dtype)
    empty = ~solution.trace.seen.allowed.any(-1)
    assert empty.any()
    assert (solution.parts["output"].bound[empty] == 0.0).all()
    assert (solution.parts["weights"].bound[empty] == 0.0).all()
    uniform = solve(problem, Conventions().claiming({"empty-row": "uniform"})).parts
    assert 0.0 < uniform["output"].bound[empty].max() < 0.2
    assert 0.0 < uniform["weights"].bound[empty].max() < 0.2 / 7


def test_float32_softmax_widens_float64_only() -> None:
    narrow: Mapping[str, SoftmaxPrecision] = dict.fromkeys(DTYPES, SoftmaxPrecision.FLOAT32)
    assert precision("float64", narrow["float64"]).softmax > 1e8 * precision("float64").softmax
    for dtype in ("float32", "bfloat16", "float16"):
        assert vars(precision(dtype, narrow[dtype])) == vars(precision(dtype))
