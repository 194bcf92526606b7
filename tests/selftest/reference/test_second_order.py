"""Second derivatives of the reference: against differences of its gradients, by symmetry, and against torch."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.implementations.adapters.modes import op_modes
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.reference.expected import solve
from attention_conformance.reference.second_order import second_order
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, ModuleForm, Padding, Pattern, Sharing
from attention_conformance.spec.conventions import Conventions, EmptyRow
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.selftest.reference.agreement import ratio
from attention_conformance.tests.selftest.reference.oracle_cases import NARROW, NARROW_KEY_VALUE, NARROW_SELF, SMALL

SQUARE = replace(SMALL, query_length=4)
CASES = {
    "plain": Case(sizes=SMALL),
    "one query": Case(sizes=replace(SMALL, query_length=1), score_std=6.0),
    "negative scale": Case(sizes=SMALL, scale=-0.7),
    "causal": Case(sizes=SQUARE, causal=True),
    "float mask": Case(sizes=SMALL, mask=MaskKind.FLOAT, mask_shape=MaskShape.SHARED),
    "empty row": Case(sizes=SMALL, mask=MaskKind.BOOL, pattern=Pattern.EMPTY_ROW),
    "padding": Case(sizes=SMALL, padding=Padding.EMPTY_SAMPLE),
    "module": Case(sizes=SMALL, module=NARROW, mask=MaskKind.FLOAT),
    "shared keys and values": Case(sizes=SMALL, module=NARROW_KEY_VALUE),
    "self-attention": Case(sizes=SQUARE, causal=True, module=NARROW_SELF),
    "without output projection": Case(sizes=SMALL, module=ModuleForm(Sharing.NONE, 5, 3, 4, 4)),
}
STEP = 1.0 / 256.0


def _gradients(problem: Problem, at: float) -> dict[str, Array]:
    """The gradients at so many directions from the problem's own numbers."""
    wide, moves = problem.widened(), problem.direction()
    moved = {name: wide.arrays()[name] + at * moves[name].astype(np.float64) for name in problem.needs}
    parts = solve(wide.with_arrays(moved)).parts
    return {name: part.value for name, part in parts.items() if name.startswith("gradients.")}


def _differences(problem: Problem, step: float) -> dict[str, Array]:
    """Central differences whose error falls with the sixth power of the step."""
    by_step = {at: _gradients(problem, at * step) for at in (-3, -2, -1, 1, 2, 3)}
    factors = {1: 45.0, 2: -9.0, 3: 1.0}
    return {
        name: np.sum([f * (by_step[at][name] - by_step[-at][name]) for at, f in factors.items()], 0) / (60.0 * step)
        for name in by_step[1]
    }


@pytest.mark.parametrize("name", CASES)
def test_is_the_difference_of_gradients(name: str) -> None:
    """Half the step shows how far the differences are off, 64 times over; their factors sum to less than 2."""
    problem = build(CASES[name], "float64")
    coarse, fine, exact = _differences(problem, 2.0 * STEP), _differences(problem, STEP), second_order(problem)
    assert set(exact) == {f"gradients.{name}" for name in problem.needs} == set(fine)
    truncation = max(np.abs(coarse[part] - fine[part]).max() for part in exact)
    rounding = 2.0 * max(part.bound.max() for name, part in solve(problem).parts.items() if name in exact) / STEP
    for part, expected in exact.items():
        assert np.abs(fine[part] - expected.value).max() <= truncation + rounding, part
    assert truncation + rounding < 1e-3 * max(np.abs(part.value).max() for part in exact.values())


def _inner(left: Mapping[str, Array], right: Mapping[str, Array]) -> float:
    return float(sum((left[name] * right[name]).sum() for name in left))


@pytest.mark.parametrize("name", CASES)
def test_the_matrix_is_symmetric(name: str) -> None:
    problem, rng = build(CASES[name], "float64"), np.random.default_rng(0)
    first, second = (
        {name: rng.standard_normal(problem.arrays()[name].shape) for name in problem.needs} for _ in range(2)
    )
    along_first, along_second = (second_order(problem, direction=along) for along in (first, second))
    one = _inner(second, {name: along_first[f"gradients.{name}"].value for name in second})
    other = _inner(first, {name: along_second[f"gradients.{name}"].value for name in first})
    bound = _inner(
        {name: np.abs(array) for name, array in second.items()},
        {name: along_first[f"gradients.{name}"].bound for name in second},
    )
    assert abs(one - other) <= bound < 1e-6 * abs(one)


def test_nothing_moves_in_rows_of_a_constant_answer() -> None:
    problem = build(CASES["empty row"], "float64")
    exact = second_order(problem, Conventions().claiming({"empty-row": EmptyRow.UNIFORM}))
    assert not exact["gradients.query"].value[:, :, 1].any()
    assert exact["gradients.value"].value.any()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.module is None])
def test_torch_is_within_the_bounds(name: str, dtype: str) -> None:
    modes = op_modes(Steps(), Feature.DOUBLE_BACKWARD)
    steps = Implementation("steps", Claims(Scope.OP, OP_FEATURES | set(modes)), torch_op(Steps()), modes=modes)
    problem = build(CASES[name], dtype)
    gradients = steps.modes[Feature.DOUBLE_BACKWARD](problem.fresh(), "cpu").gradients
    for part, expected in second_order(problem).items():
        assert ratio(gradients[part.removeprefix("gradients.")], expected) < 1.0, part
