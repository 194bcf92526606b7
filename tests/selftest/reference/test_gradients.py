"""The closed-form gradients against complex-step derivatives of the loops."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import (
    Case,
    Embedding,
    MaskKind,
    MaskShape,
    ModuleForm,
    Padding,
    Pattern,
    Scores,
    Sharing,
    Sizes,
)
from attention_conformance.spec.conventions import Alignment, Conventions
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.selftest.reference.arithmetic import COMPLEX
from attention_conformance.tests.selftest.reference.oracle import loss

STEP = 1e-30
"""The imaginary step. The truncation error is its square, so what is left are the roundings of the loops."""

SMALL = Sizes(batch=2, num_heads=2, query_length=3, key_length=4, d_k=3, d_v=2)
SQUARE = replace(SMALL, query_length=4)
TALL = replace(SMALL, query_length=5)
BIASED = ModuleForm(Sharing.NONE, 5, 3, 4, 3, bias=True, output_projection=True, output_bias=True)
KEY_VALUE = replace(BIASED, sharing=Sharing.KEY_VALUE, value_dim=3)
SELF = replace(BIASED, sharing=Sharing.SELF, query_dim=4, key_dim=4, value_dim=4)
BARE = ModuleForm(Sharing.NONE, 5, 3, 4, 4)
SELECTED = ModuleForm(Sharing.SELF, 16, 16, 16, 4, embedding=Embedding.SELECT)

BROADCAST_MASKS = [
    Case(sizes=SMALL, mask=kind, mask_shape=shape)
    for kind, shape in product((MaskKind.FLOAT, MaskKind.INFINITE), MaskShape)
]
OPS = [
    Case(sizes=SMALL),
    Case(sizes=SMALL, score_std=30.0),
    Case(sizes=SMALL, scale=0.0),
    Case(sizes=SMALL, scale=-0.7),
    Case(sizes=SMALL, mask=MaskKind.BOOL),
    Case(sizes=SMALL, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW, mask_shape=MaskShape.SHARED),
    Case(sizes=SMALL, mask=MaskKind.INFINITE, pattern=Pattern.EMPTY_ROW),
    Case(sizes=SMALL, mask=MaskKind.FLOAT, mask_offset=-1e5),
    Case(sizes=TALL, causal=True),
    Case(sizes=SQUARE, causal=True, padding=Padding.LEFT),
    Case(sizes=SMALL, padding=Padding.EMPTY_SAMPLE),
    Case(sizes=SMALL, padding=Padding.QUERY_LENGTHS),
    Case(sizes=SMALL, scores=Scores.RISING),
]
MODULES = [
    Case(sizes=SMALL, module=BIASED),
    Case(sizes=SMALL, module=BIASED, mask=MaskKind.FLOAT, mask_shape=MaskShape.SAMPLE),
    Case(sizes=SMALL, module=BARE, padding=Padding.HOLES),
    Case(sizes=SMALL, module=KEY_VALUE, padding=Padding.EMPTY_SAMPLE),
    Case(sizes=SQUARE, module=SELF),
    Case(sizes=SQUARE, module=SELF, causal=True, padding=Padding.LEFT),
    Case(sizes=SQUARE, module=SELECTED, causal=True),
]


def complex_step(
    problem: Problem, name: str, conventions: Conventions, kept: Array | None = None
) -> NDArray[np.float64]:
    """The derivative by each element: the loss's imaginary part where that element has a tiny one."""
    array = problem.arrays()[name].astype(np.complex128)
    found = np.zeros(array.shape)
    for place in np.ndindex(*array.shape):
        moved = array.copy()
        moved[place] += 1j * STEP
        found[place] = loss(problem.with_arrays({name: moved}), conventions, COMPLEX, kept).imag / STEP
    return found


def assert_gradients_agree(case: Case, conventions: Conventions = Conventions()) -> None:
    problem = build(case, "float64")
    parts = solve(problem, conventions).parts
    assert problem.needs
    for name in problem.needs:
        expected = parts[f"gradients.{name}"]
        distance = np.abs(complex_step(problem, name, conventions) - expected.value)
        assert expected.value.shape == problem.arrays()[name].shape
        assert (distance <= expected.bound).all(), name


@pytest.mark.parametrize("case", [*OPS, *BROADCAST_MASKS, *MODULES], ids=str)
def test_gradients_agree_with_complex_steps(case: Case) -> None:
    assert_gradients_agree(case)


def test_gradients_under_bottom_right_alignment() -> None:
    assert_gradients_agree(Case(sizes=TALL, causal=True), Conventions(causal_alignment=Alignment.BOTTOM_RIGHT))


@pytest.mark.parametrize("mask", [MaskKind.BOOL, MaskKind.INFINITE])
def test_uniform_rows_pass_gradients_to_the_values_alone(mask: MaskKind) -> None:
    case = Case(sizes=SMALL, mask=mask, pattern=Pattern.EMPTY_ROW, mask_shape=MaskShape.SHARED)
    assert_gradients_agree(case, Conventions().claiming({"empty-row": "uniform"}))


@pytest.mark.parametrize("form", [SELF, KEY_VALUE, BIASED], ids=lambda form: str(form.sharing))
def test_shared_inputs_get_one_gradient(form: ModuleForm) -> None:
    problem = build(Case(sizes=SQUARE, module=form), "float64")
    inputs = {Sharing.SELF: {"query"}, Sharing.KEY_VALUE: {"query", "key"}, Sharing.NONE: {"query", "key", "value"}}
    parameters = {"w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "b_v", "b_o"}
    assert set(problem.needs) == inputs[form.sharing] | parameters


def test_a_bias_of_the_keys_has_no_gradient() -> None:
    """It adds the same number to all scores of a row, which the softmax does not see."""
    found = solve(build(Case(sizes=SMALL, module=BIASED), "float64")).parts["gradients.b_k"]
    assert (np.abs(found.value) <= found.bound).all()


def test_a_gradient_is_the_same_whichever_others_are_wanted() -> None:
    problem = build(Case(sizes=SQUARE, module=SELF), "float64")
    parts = solve(problem).parts
    for name in problem.needs:
        alone = solve(replace(problem, needs=(name,))).parts[f"gradients.{name}"]
        assert np.array_equal(alone.value, parts[f"gradients.{name}"].value)
