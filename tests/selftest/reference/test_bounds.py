"""The bounds let every correct style of computing through, and no wrong answer."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.reference.bounds.extensions import capped_bound, rotated_bound
from attention_conformance.reference.bounds.precision import gamma, precision, unit_roundoff
from attention_conformance.reference.expected import Solution, sample_rows, solve
from attention_conformance.reference.pipeline import Pipeline
from attention_conformance.reference.stages import rotation
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
from attention_conformance.spec.conventions import Conventions, RotaryPairing, SoftmaxPrecision
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.selftest.reference import family_styles, styles
from attention_conformance.tests.selftest.reference.agreement import PARTS, ratio
from attention_conformance.tests.selftest.reference.bound_margins import (
    DETECTED,
    part_ratios,
    solved,
    wrong_family_ratio,
)
from attention_conformance.tests.selftest.reference.oracle_cases import CROSS, SELF
from attention_conformance.tests.selftest.spec.draws import GENTLE, ORDINARY, POINTED, drawn_case, drawn_family_case

LONG = [drawn_case(number) for number in range(40)]
BRIEF = [drawn_case(number, longest=17) for number in range(40)]
FAMILY = [drawn_family_case(number, longest=40) for number in range(40)]
GROUPS = Sizes(num_heads=6, num_kv_heads=2, query_length=7, key_length=7)
MODULES = [
    Case(sizes=GROUPS, module=CROSS).extended(bias_kv=True),
    Case(sizes=GROUPS, module=SELF, causal=True).extended(bias_kv=True, zero_attn=True, rotary_base=100.0),
    Case(sizes=replace(GROUPS, num_kv_heads=0), module=CROSS, mask=MaskKind.FLOAT).extended(
        bias_kv=True, sinks=True, softcap=3.0, head_gates=True, relative_bias=2
    ),
    Case(sizes=GROUPS, module=SELF, padding=Padding.LEFT).extended(alibi=True, dropout=0.4, dropout_seed=5),
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads take longer to wait for each other than these small products take."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def ratio_of_style(style: styles.Style, case: Case, dtype: str) -> float:
    problem, solution = solved(case, dtype)
    return ratio(styles.output_of(style, problem), solution.parts["output"])


def assert_within(result: Result, solution: Solution) -> None:
    ratios = part_ratios(result, solution)
    assert set(PARTS) <= set(ratios)
    assert max(ratios.values()) < 1.0, ratios


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", styles.CORRECT)
def test_correct_styles_stay_below_the_bound(name: str, dtype: str) -> None:
    ratios = {case: ratio_of_style(styles.CORRECT[name], case, dtype) for case in (*LONG, *BRIEF)}
    assert max(ratios.values()) < 1.0, max(ratios, key=lambda case: ratios[case])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", styles.SHORT)
def test_states_may_be_stored_for_few_keys(name: str, dtype: str) -> None:
    assert max(ratio_of_style(styles.SHORT[name], case, dtype) for case in BRIEF) < 1.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_and_log_sum_exp_stay_below_their_bounds(dtype: str) -> None:
    run = torch_op(styles.TEXTBOOK.answer, extras=("weights", "log_sum_exp"))
    for case in (*LONG, *BRIEF):
        problem, solution = solved(case, dtype)
        assert_within(run(styles.with_one_mask(problem).forward_only(), "cpu"), solution)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("centred_by", ["weights", "output"])
def test_correct_gradients_stay_below_their_bounds(centred_by: str, dtype: str) -> None:
    for case in (*LONG, *BRIEF):
        problem, solution = solved(case, dtype)
        for name, gradient in styles.backward(problem, centred_by).items():
            assert ratio(gradient, solution.parts[f"gradients.{name}"]) < 1.0, case


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", family_styles.RIGHT)
def test_correct_styles_of_the_family_stay_below_the_bound(name: str, dtype: str) -> None:
    style = family_styles.RIGHT[name]
    cases = [case for case in FAMILY if style.concerns(case)][:12]
    assert len(cases) >= 5
    for case in cases:
        problem, solution = solved(case, dtype)
        assert_within(family_styles.implementation(name, style.answer).run(problem.fresh(), "cpu"), solution)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("steps", [Steps(), family_styles.EAGER], ids=["wide", "eager"])
@pytest.mark.parametrize("case", MODULES, ids=str)
def test_modules_stay_below_the_bound(case: Case, steps: Steps, dtype: str) -> None:
    problem, solution = solved(case, dtype)
    assert_within(family_styles.composed(steps)(problem.fresh(), "cpu"), solution)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", styles.WRONG)
def test_wrong_answers_exceed_the_bound(name: str, dtype: str) -> None:
    assert max(ratio_of_style(styles.WRONG[name], case, dtype) for case in POINTED) >= DETECTED


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("weights in bfloat16", "float32"), ("weights in bfloat16", "float64"), ("1e-6 in the denominator", "float64")],
)
def test_lost_digits_exceed_the_bound(name: str, dtype: str) -> None:
    assert ratio_of_style(styles.LOST_DIGITS[name], ORDINARY, dtype) >= DETECTED


@pytest.mark.parametrize("dtype", DTYPES)
def test_wrong_gradients_exceed_the_bound(dtype: str) -> None:
    problem, solution = solved(GENTLE, dtype)
    uncentred = styles.backward(problem, "nothing")
    for name in ("query", "key"):
        part = solution.parts[f"gradients.{name}"]
        assert ratio(uncentred[name], part) >= DETECTED
        assert ratio(np.zeros_like(part.value), part) >= DETECTED


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n, d in product(family_styles.WRONG, DTYPES) if family_styles.WRONG[n].shows_in(d)]
)
def test_wrong_steps_of_the_family_exceed_the_bound(name: str, dtype: str) -> None:
    assert wrong_family_ratio(family_styles.WRONG[name], dtype) >= DETECTED


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bound_never_passes_the_attended_values(dtype: str) -> None:
    """However uncertain the scores, an average stays within its values, but for its own roundings."""
    _, solution = solved(Case(scores=Scores.VERY_NEGATIVE, mask=MaskKind.BOOL, score_std=30.0), dtype)
    value, part = solution.trace.value, solution.parts["output"]
    extent = (value.max(2) - value.min(2))[:, :, None]
    assert np.isfinite(part.bound).all()
    rounding = precision(dtype).weight_error(7) + 2.0 * unit_roundoff(dtype)
    assert (part.bound <= extent + 4.0 * (1.0 + rounding) * np.abs(value).max()).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_beyond_all_precision_leave_finite_bounds(dtype: str) -> None:
    """Where rounding may move a score by hundreds, the exact sums overflow; the bounds may not."""
    sizes = Sizes(key_length=40, d_k=64)
    for case in (Case(sizes=sizes, score_std=1000.0), Case(sizes=sizes, mask=MaskKind.FLOAT, mask_offset=-3e4)):
        problem, solution = solved(case, dtype)
        assert ratio_of_style(styles.TEXTBOOK, case, dtype) < 1.0
        for name in (*PARTS, *(f"gradients.{n}" for n in problem.needs)):
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
def test_poison_does_not_reach_the_bounds(dtype: str) -> None:
    form = ModuleForm(Sharing.NONE, 5, 6, 7, 3, bias=True, output_projection=True, output_bias=True)
    for module in (None, form):
        case = Case(module=module, padding=Padding.RIGHT, poison=Poison.NAN)
        problem = build(case, dtype)
        if module is not None:
            key, value = problem.key.copy(), problem.value.copy()
            key[:, -2:], value[:, -2:] = np.nan, np.nan
            problem = problem.with_arrays({"key": key, "value": value})
        for name in PARTS:
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
    single = SoftmaxPrecision.FLOAT32
    assert precision("float64", single).softmax > 1e8 * precision("float64").softmax
    for dtype in ("float32", "bfloat16", "float16"):
        assert vars(precision(dtype, single)) == vars(precision(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cap_moves_no_farther_than_its_bound_and_as_far(dtype: str) -> None:
    """Against the cap at the ends of the interval in which a product may lie."""
    working = replace(precision(dtype), softmax=0.0, accumulator=0.0)
    for limit in (0.5, 3.0, 40.0):
        problem = build(Case(score_std=9.0).extended(softcap=limit), "float64")
        trace = Pipeline().run(problem)
        for reach in (1e-9, 0.3, 2.0, 100.0):
            bound = capped_bound(trace, np.full_like(trace.products, reach), working)
            ends = [limit * np.tanh((trace.products + side * reach) / limit) for side in (-1.0, 1.0)]
            moved = np.maximum(*(np.abs(end - trace.capped) for end in ends))
            # Sum, quotient, hyperbolic tangent, product and difference are rounded, here and in the bound.
            rounding = gamma(2 * 5 * unit_roundoff("float64")) * limit
            assert (np.abs(bound - moved) <= rounding).all()


@pytest.mark.parametrize("pairing", RotaryPairing)
def test_rows_rotated_by_angles_of_float32_keep_to_the_bound(pairing: RotaryPairing) -> None:
    """Positions to 100000; the angles and their sines in float32, all else in float64."""
    positions, width = np.linspace(0, 1e5, 50).astype(np.int64)[None], 16
    rows = np.random.default_rng(0).standard_normal((1, 2, 50, width))
    for base in (10.0, 1e4, 5e5):
        exact = rotation(positions, width, base, pairing)
        exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
        frequencies = 1.0 / np.float32(base) ** exponents
        angles = positions[:, None, :, None].astype(np.float32) * frequencies
        wide = angles.astype(np.float64)
        rounded = replace(exact, cosines=np.cos(wide), sines=np.sin(wide), angles=wide)
        error = np.abs(rounded.rotated(rows) - exact.rotated(rows))
        bound = rotated_bound(exact, rows, np.zeros_like(rows), precision("float64"))
        assert (error <= bound).all()
        assert error.max() > 1e-3 * bound.max()


def test_rows_are_not_sampled_where_positions_matter() -> None:
    rows = np.array([0])
    for options in ({"window_left": 1}, {"rotary_base": 10.0}, {"alibi": True}, {"relative_bias": 1}):
        problem = build(Case().extended(**options), "float64")
        with pytest.raises(ValueError, match="positions"):
            sample_rows(problem, rows)
