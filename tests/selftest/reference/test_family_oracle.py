"""The family's reference against loops, fifty digits and complex steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from attention_conformance.reference.bounds.precision import precision
from attention_conformance.reference.expected import Solution, solve
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, ModuleForm, Padding, Pattern, Sharing, Sizes
from attention_conformance.spec.conventions import (
    Alignment,
    Conventions,
    EmptyRow,
    GroupOrder,
    RotaryPairing,
    WindowCount,
)
from attention_conformance.spec.covering import combinations
from attention_conformance.spec.features import Extension, Packing
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.selftest.reference.arithmetic import DOUBLE, FIFTY_DIGITS, Arithmetic
from attention_conformance.tests.selftest.reference.oracle import attention
from attention_conformance.tests.selftest.reference.test_gradients import complex_step
from attention_conformance.tests.selftest.reference.test_oracle import ratio

SMALL = Sizes(batch=2, num_heads=2, query_length=4, key_length=5, d_k=4, d_v=2)
GROUPS = replace(SMALL, num_heads=4, num_kv_heads=2, query_length=3)
SQUARE = replace(SMALL, query_length=5)
TALL = replace(SMALL, query_length=6, key_length=4)
LONG = replace(SMALL, batch=1, num_heads=1, query_length=9, key_length=9)
FORM = ModuleForm(Sharing.NONE, 5, 3, 4, 3, bias=True, output_projection=True, output_bias=True)
SELF = replace(FORM, sharing=Sharing.SELF, query_dim=4, key_dim=4, value_dim=4)
KEY_VALUE = replace(FORM, sharing=Sharing.KEY_VALUE, value_dim=3)
EVERYTHING = Extension(
    window_left=3,
    window_right=2,
    softcap=2.0,
    rotary_base=50.0,
    query_start=1,
    alibi=True,
    relative_bias=2,
    sinks=True,
    zero_attn=True,
    head_gates=True,
)
ELSEWHERE = Conventions().claiming(
    {
        "causal-alignment": "bottom-right",
        "group-order": "tiled",
        "window-count": "including",
        "rotary-pairing": "interleaved",
        "returned-weights": "after-dropout",
        "log-sum-exp-base": "2",
    }
)
"""The other answer to every question."""
BOTH = pytest.mark.parametrize("conventions", [Conventions(), ELSEWHERE], ids=["default", "elsewhere"])

PLACED = [
    Case(sizes=SMALL, causal=True).extended(query_start=1),
    Case(sizes=TALL, causal=True),
    Case(sizes=SMALL).extended(window_left=1),
    Case(sizes=SMALL).extended(window_left=0, window_right=0),
    Case(sizes=SMALL).extended(window_left=2, window_right=1, query_start=2),
    Case(sizes=TALL).extended(window_left=1, window_right=1),
    Case(sizes=SQUARE, causal=True).extended(window_left=2),
    Case(sizes=SQUARE, padding=Padding.LEFT).extended(window_left=2),
    Case(sizes=SMALL).extended(packing=Packing.SEGMENTS),
    Case(sizes=LONG, causal=True).extended(packing=Packing.SEGMENTS),
    Case(sizes=LONG, causal=True).extended(packing=Packing.LENGTHS, window_left=1),
    Case(sizes=LONG, mask=MaskKind.INFINITE).extended(packing=Packing.LENGTHS),
    Case(sizes=TALL, causal=True).extended(packing=Packing.LENGTHS, alibi=True),
    Case(sizes=SMALL).extended(packing=Packing.EMPTY_SEGMENT, rotary_base=10.0, relative_bias=1),
    Case(sizes=SMALL).extended(packing=Packing.EMPTY_DOCUMENT, window_right=0),
]
SCORED = [
    Case(sizes=SMALL, score_std=6.0).extended(softcap=1.5),
    Case(sizes=SMALL, score_std=30.0, mask=MaskKind.FLOAT).extended(softcap=20.0),
    Case(sizes=SMALL).extended(rotary_base=10000.0),
    Case(sizes=SMALL).extended(rotary_base=3.0, query_start=7),
    Case(sizes=SMALL).extended(alibi=True),
    Case(sizes=SMALL, causal=True).extended(alibi=True, query_start=3),
    Case(sizes=SMALL, mask=MaskKind.INFINITE, mask_shape=MaskShape.SAMPLE).extended(relative_bias=2),
    Case(sizes=SQUARE).extended(relative_bias=9),
]
EXTENDED = [
    Case(sizes=SMALL).extended(sinks=True),
    Case(sizes=SMALL, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW).extended(sinks=True),
    Case(sizes=SMALL, mask=MaskKind.FLOAT).extended(zero_attn=True),
    Case(sizes=SMALL, padding=Padding.EMPTY_SAMPLE).extended(zero_attn=True, sinks=True, softcap=2.0),
    Case(sizes=SMALL).extended(head_gates=True),
]
GROUPED = [
    Case(sizes=GROUPS),
    Case(sizes=replace(GROUPS, num_kv_heads=1), causal=True).extended(rotary_base=9.0),
    Case(sizes=replace(GROUPS, num_heads=6, num_kv_heads=2)).extended(sinks=True, alibi=True),
]
OPS = [*PLACED, *SCORED, *EXTENDED, *GROUPED, Case(sizes=GROUPS, extension=EVERYTHING)]
MODULES = [
    Case(sizes=SMALL, module=FORM).extended(bias_kv=True),
    Case(sizes=SMALL, module=KEY_VALUE, mask=MaskKind.BOOL).extended(bias_kv=True, zero_attn=True),
    Case(sizes=SQUARE, module=SELF, causal=True).extended(bias_kv=True, sinks=True, rotary_base=20.0),
    Case(sizes=GROUPS, module=FORM).extended(head_gates=True, relative_bias=1),
    Case(sizes=GROUPS, module=KEY_VALUE).extended(bias_kv=True, softcap=2.0),
    Case(sizes=GROUPS, module=FORM, extension=replace(EVERYTHING, bias_kv=True)),
    Case(sizes=LONG, module=SELF, causal=True).extended(packing=Packing.SEGMENTS, alibi=True),
]
DROPPED = [
    Case(sizes=SMALL),
    Case(sizes=GROUPS, mask=MaskKind.BOOL).extended(head_gates=True, sinks=True),
    Case(sizes=SMALL, module=FORM).extended(bias_kv=True, zero_attn=True),
]
SHARP = replace(precision("float64"), angle=2.0**-52)
"""The reference's own precision: its angles are in float64, where implementations may have them in float32."""


@cache
def solved(case: Case, conventions: Conventions, dropout: float = 0.0) -> tuple[Problem, Array | None, Solution]:
    problem = build(case, "float64")
    kept = factors(problem, dropout, case.seed) if dropout else None
    return problem, kept, solve(problem, conventions, kept, SHARP)


def factors(problem: Problem, rate: float, seed: int) -> NDArray[np.float64]:
    """(B, H, Lq, Lk), further keys and the sink included: 0 for dropped weights, 1 / (1 - rate) for the others."""
    columns = problem.key.shape[-2] + problem.extension.extra_keys + ("sinks" in problem.extras)
    shape = (len(problem.query), problem.num_heads, problem.query.shape[-2], columns)
    return np.where(np.random.default_rng(seed).random(shape) < rate, 0.0, 1.0 / (1.0 - rate))


def assert_answers_agree(
    case: Case, conventions: Conventions, dropout: float = 0.0, arithmetic: Arithmetic = DOUBLE, room: float = 1.0
) -> None:
    problem, kept, solution = solved(case, conventions, dropout)
    found = attention(problem, conventions, arithmetic, kept)
    for name in ("output", "weights", "log_sum_exp"):
        assert ratio(_rounded(getattr(found, name)), solution.parts[name]) <= room, name
    averaged = np.array(_rounded(found.weights)).mean(1)
    assert ratio(averaged, solution.parts["averaged_weights"]) <= room


def _rounded(nested: Any) -> Any:
    return [_rounded(part) for part in nested] if isinstance(nested, list) else float(nested)


def assert_gradients_agree(case: Case, conventions: Conventions, dropout: float = 0.0) -> None:
    problem, kept, solution = solved(case, conventions, dropout)
    for name in problem.needs:
        expected = solution.parts[f"gradients.{name}"]
        distance = np.abs(complex_step(problem, name, conventions, kept) - expected.value)
        assert (distance <= expected.bound).all(), name


@BOTH
@pytest.mark.parametrize("case", [*OPS, *MODULES], ids=str)
def test_agrees_with_loops(case: Case, conventions: Conventions) -> None:
    assert_answers_agree(case, conventions)


@BOTH
@pytest.mark.parametrize("case", [*OPS, *MODULES], ids=str)
def test_gradients_agree_with_complex_steps(case: Case, conventions: Conventions) -> None:
    assert_gradients_agree(case, conventions)


@BOTH
@pytest.mark.parametrize("case", DROPPED, ids=str)
def test_dropout_agrees(case: Case, conventions: Conventions) -> None:
    for rate in (0.3, 0.9):
        assert_answers_agree(case, conventions, rate)
    assert_gradients_agree(case, conventions, 0.3)


@pytest.mark.parametrize("case", [*SCORED, *EXTENDED, OPS[-1], *MODULES], ids=str)
def test_agrees_with_fifty_digits(case: Case) -> None:
    assert_answers_agree(case, Conventions(), arithmetic=FIFTY_DIGITS, room=0.5)


@pytest.mark.parametrize("conventions", [Conventions(), ELSEWHERE], ids=["default", "elsewhere"])
@pytest.mark.parametrize("answer", EmptyRow)
@pytest.mark.parametrize(
    "case",
    [
        Case(sizes=SMALL).extended(window_left=0, window_right=0, query_start=9),
        Case(sizes=TALL).extended(window_left=0, window_right=0),
        Case(sizes=SMALL).extended(packing=Packing.EMPTY_SEGMENT),
        Case(sizes=LONG, causal=True).extended(packing=Packing.EMPTY_DOCUMENT),
    ],
    ids=str,
)
def test_rows_emptied_by_position_agree(case: Case, answer: EmptyRow, conventions: Conventions) -> None:
    claimed = conventions.claiming({"empty-row-causal": answer})
    assert_answers_agree(case, claimed)
    _, _, solution = solved(case, claimed)
    assert solution.trace.seen.rows_answered(answer).any()
    if answer is not EmptyRow.NAN:
        assert_gradients_agree(case, claimed)


def combined_cases() -> list[Case]:
    """The pairs of the quick tier, with even widths for the rotations and fewer of the largest sizes."""
    found = combinations(lambda case: case.sizes.d_k < 16, Conventions())
    return [case.sized(d_k=case.sizes.d_k + case.sizes.d_k % 2) for case in found]


@pytest.mark.parametrize("case", combined_cases(), ids=lambda case: f"pairs-{case.seed}")
def test_pairs_of_options_agree(case: Case) -> None:
    # Sizes, masks and the family's options meet here in all pairs; learned further keys need a module.
    module = FORM if case.extension.bias_kv else None
    assert_answers_agree(replace(case, module=module), ELSEWHERE if case.seed % 2 else Conventions())


def some(*levels: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(levels)


EXTENSIONS = st.builds(
    Extension,
    window_left=st.none() | st.integers(0, 9),
    window_right=st.none() | st.integers(0, 9),
    softcap=st.none() | st.floats(0.1, 100.0),
    rotary_base=st.none() | st.floats(1.0, 1e6),
    query_start=st.none() | st.integers(0, 50),
    alibi=st.booleans(),
    relative_bias=st.integers(0, 4),
    sinks=st.booleans(),
    zero_attn=st.booleans(),
    head_gates=st.booleans(),
    bias_kv=st.booleans(),
    packing=st.sampled_from(Packing),
)
CONVENTIONS = st.builds(
    Conventions,
    causal_alignment=st.sampled_from(Alignment),
    group_order=st.sampled_from(GroupOrder),
    window_count=st.sampled_from(WindowCount),
    rotary_pairing=st.sampled_from(RotaryPairing),
)
SIZES = st.builds(
    lambda groups, shared, pairs, **rest: Sizes(num_heads=groups * shared, num_kv_heads=shared, d_k=2 * pairs, **rest),
    groups=st.integers(1, 3),
    shared=st.integers(1, 2),
    pairs=st.integers(1, 3),
    batch=st.integers(1, 2),
    query_length=st.integers(1, 7),
    key_length=st.integers(1, 7),
    d_v=st.integers(1, 3),
)
CASES = st.builds(
    Case,
    sizes=SIZES,
    seed=st.integers(0, 2**32),
    score_std=st.floats(0.1, 20.0),
    mask=st.sampled_from(MaskKind),
    padding=some(Padding.NONE, Padding.NONE, Padding.LEFT, Padding.HOLES),
    causal=st.booleans(),
    extension=EXTENSIONS,
)


@settings(deadline=None, max_examples=80)
@given(case=CASES, conventions=CONVENTIONS, dropout=some(0.0, 0.0, 0.5))
def test_drawn_combinations_agree(case: Case, conventions: Conventions, dropout: float) -> None:
    module = FORM if case.extension.bias_kv else None
    assert_answers_agree(replace(case, module=module), conventions, dropout)


@settings(deadline=None, max_examples=12)
@given(case=CASES, conventions=CONVENTIONS)
def test_gradients_of_drawn_combinations_agree(case: Case, conventions: Conventions) -> None:
    small = case.sized(batch=1, query_length=min(3, case.sizes.query_length), d_k=2)
    assert_gradients_agree(replace(small, module=FORM if case.extension.bias_kv else None), conventions)
