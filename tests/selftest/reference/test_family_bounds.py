"""The bounds of the attention family let every correct style through, and no wrong answer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product

import numpy as np
import pytest

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.reference.bounds.extensions import capped_bound, rotated_bound
from attention_conformance.reference.bounds.precision import gamma, precision, unit_roundoff
from attention_conformance.reference.expected import Expected, Solution, sample_rows, solve
from attention_conformance.reference.pipeline import Pipeline
from attention_conformance.reference.stages import rotation
from attention_conformance.spec.cases import Case, MaskKind, ModuleForm, Padding, Sharing, Sizes
from attention_conformance.spec.conventions import RotaryPairing
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import DTYPES, Array, Problem
from attention_conformance.tests.selftest.reference.family_styles import (
    EAGER,
    RIGHT,
    WRONG,
    Style,
    composed,
    factors_of,
    implementation,
)
from attention_conformance.tests.selftest.reference.test_bounds import TEETH, worst
from attention_conformance.tests.selftest.spec.family_draws import drawn_family_case

SHORT = [drawn_family_case(number, longest=40) for number in range(40)]
SIZES = Sizes(num_heads=6, num_kv_heads=2, query_length=7, key_length=7)
FORM = ModuleForm(Sharing.NONE, 13, 11, 17, 10, bias=True, output_projection=True, output_bias=True)
SELF = replace(FORM, sharing=Sharing.SELF, query_dim=12, key_dim=12, value_dim=12)
MODULES = [
    Case(sizes=SIZES, module=FORM).extended(bias_kv=True),
    Case(sizes=SIZES, module=SELF, causal=True).extended(bias_kv=True, zero_attn=True, rotary_base=100.0),
    Case(sizes=replace(SIZES, num_kv_heads=0), module=FORM, mask=MaskKind.FLOAT).extended(
        bias_kv=True, sinks=True, softcap=3.0, head_gates=True, relative_bias=2
    ),
    Case(sizes=SIZES, module=SELF, padding=Padding.LEFT).extended(alibi=True, dropout=0.4, dropout_seed=5),
]


@cache
def solved(case: Case, dtype: str) -> tuple[Problem, Solution]:
    problem = build(case, dtype)
    return problem, solve(problem, kept=factors_of(problem))


def parts_of(result: Result) -> dict[str, Array | None]:
    gradients = {f"gradients.{name}": array for name, array in result.gradients.items()}
    return {"output": result.output, "weights": result.weights, "log_sum_exp": result.log_sum_exp, **gradients}


def assert_within(result: Result, solution: Solution) -> None:
    """Every row that sees a key; others are answered by convention."""
    rows = solution.trace.seen.allowed.any(-1)
    for name, found in parts_of(result).items():
        part = solution.parts[name]
        assert found is not None
        if name == "log_sum_exp":
            found, part = found[rows], Expected(part.value[rows], part.bound[rows])
        assert worst(found, part) < 1.0, name


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RIGHT)
def test_correct_styles_stay_below_the_bound(name: str, dtype: str) -> None:
    style: Style = RIGHT[name]
    asked = [case for case in SHORT if style.concerns(case)][:12]
    assert len(asked) >= 5
    for case in asked:
        problem, solution = solved(case, dtype)
        assert_within(implementation(name, style.answer).run(problem.fresh(), "cpu"), solution)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("steps", [Steps(), EAGER], ids=["wide", "eager"])
@pytest.mark.parametrize("case", MODULES, ids=str)
def test_modules_stay_below_the_bound(case: Case, steps: Steps, dtype: str) -> None:
    problem, solution = solved(case, dtype)
    assert_within(composed(steps)(problem.fresh(), "cpu"), solution)


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, d in product(WRONG, DTYPES) if WRONG[n].shows_in(d)])
def test_wrong_steps_exceed_the_bound(name: str, dtype: str) -> None:
    wrong = WRONG[name]
    cases = [replace(wrong.case, seed=seed) for seed in range(4)]
    found = []
    for case in cases:
        problem, solution = solved(case, dtype)
        result = wrong.implementation(dtype).run(problem.forward_only().fresh(), "cpu")
        found += [worst(array, solution.parts[n]) for n, array in parts_of(result).items() if array is not None]
    assert max(found) >= TEETH


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
def test_rows_turned_by_angles_of_float32_keep_to_the_bound(pairing: RotaryPairing) -> None:
    """Positions to 100000; the angles and their sines in float32, all else in float64."""
    positions, width = np.linspace(0, 1e5, 50).astype(np.int64)[None], 16
    rows = np.random.default_rng(0).standard_normal((1, 2, 50, width))
    for base in (10.0, 1e4, 5e5):
        exact = rotation(positions, width, base, pairing)
        exponents = np.arange(0, width, 2, dtype=np.float32) / np.float32(width)
        frequencies = 1.0 / np.float32(base) ** exponents
        angles = positions[:, None, :, None].astype(np.float32) * frequencies
        rounded = replace(exact, angles=angles.astype(np.float64))
        error = np.abs(rounded.rotated(rows) - exact.rotated(rows))
        bound = rotated_bound(exact, rows, np.zeros_like(rows), precision("float64"))
        assert (error <= bound).all()
        assert error.max() > 1e-3 * bound.max()


def test_rows_are_not_sampled_where_positions_matter() -> None:
    rows = np.array([0])
    for asked in ({"window_left": 1}, {"rotary_base": 10.0}, {"alibi": True}, {"relative_bias": 1}):
        problem = build(Case().extended(**asked), "float64")
        with pytest.raises(ValueError, match="positions"):
            sample_rows(problem, rows)
