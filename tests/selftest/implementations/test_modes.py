"""Modes: what is claimed by them, and transforms that answer the given problem and no other."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_conformance.implementations.adapters.modes import TRANSFORMS, op_modes, scramble, together
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.adapters.transforms import (
    Transform,
    compiled_by,
    exported,
    in_autocast,
    through,
    unbatched,
    vmapped,
)
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.spec.cases import Case, MaskKind, MaskShape, Padding
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.tests.harness.judge.comparison import compare
from attention_conformance.tests.harness.judge.judge import Judge

CORE = frozenset({Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE})
PLAIN = torch_op(Steps())
MASKED = [Case(mask=MaskKind.BOOL, mask_shape=shape).sized(batch=6) for shape in MaskShape if shape.count(",") == 3]


class TestClaims:
    def test_a_mode_without_a_run_is_refused(self) -> None:
        with pytest.raises(ValueError, match="vmap"):
            Implementation("some", Claims(Scope.OP, CORE | {Feature.VMAP}), PLAIN)

    def test_a_run_that_is_not_claimed_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no-grad"):
            Implementation("some", Claims(Scope.OP, CORE), PLAIN, modes={Feature.NO_GRAD: PLAIN})

    def test_all_modes_of_a_function_or_the_wanted_ones(self) -> None:
        assert set(op_modes(Steps())) == {*TRANSFORMS, Feature.COMPILED, Feature.DOUBLE_BACKWARD}
        assert set(op_modes(Steps(), Feature.VMAP)) == {Feature.VMAP}


@pytest.mark.parametrize("transform", [vmapped, unbatched, exported, compiled_by("eager")], ids=lambda t: t.__name__)
def test_the_answer_is_that_of_the_plain_call(transform: Transform) -> None:
    judge = Judge(Implementation("steps", Claims(Scope.OP, CORE | {Feature.BOOL_MASK}), PLAIN), "float64")
    cases = [*MASKED, Case().sized(batch=5), Case(seed=1).sized(batch=1)]
    for case in cases if transform in (vmapped, unbatched) else cases[:2]:
        problem = build(case, "float64").forward_only()
        output = torch_op(through(transform, F.scaled_dot_product_attention))(problem.fresh(), "cpu").output
        assert not compare("output", output, judge.expected(case)["output"], "float64").message, str(case)


def test_shared_inputs_stay_shared() -> None:
    x = torch.randn(2, 3, 4, 5)
    shared: list[bool] = []

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shared.append(query is key is value)
        return query

    for transform in (vmapped, unbatched, exported):
        transform(attention, x, x, x)
    assert all(shared)
    assert len(shared) >= 4


def test_lanes_have_several_samples() -> None:
    shapes: list[torch.Size] = []

    def attention(query: Tensor, key: Tensor, value: Tensor, **masks: Tensor) -> Tensor:
        shapes.append(query.shape)
        return query

    vmapped(attention, *(torch.randn(6, 3, 4, 5) for _ in range(3)), key_padding_mask=torch.ones(6, 4).bool())
    assert shapes == [torch.Size([3, 3, 4, 5])]


def test_examples_are_other_numbers() -> None:
    """A decision by numbers is taken for the example, and shows."""
    x = torch.arange(24.0).view(1, 1, 4, 6)

    def first_row(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return query + float(query.detach().numpy().flat[0]) if type(query) is Tensor else query

    assert torch.equal(exported(first_row, x, x, x), x)


def test_autocast_answers_in_the_dtype_of_the_inputs() -> None:
    x = torch.randn(1, 1, 3, 4)
    dtypes: list[torch.dtype] = []

    def product(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        dtypes.append((query @ key.mT).dtype)
        return query @ key.mT

    assert in_autocast(product, x, x, x).dtype is torch.float32
    assert dtypes == [torch.bfloat16]


def test_several_runs_give_several_answers() -> None:
    problem = build(Case(padding=Padding.LEFT), "float32").forward_only()
    result = together({"plainly": PLAIN, "once more": PLAIN})(problem, "cpu")
    assert list(result.others) == ["once more"]
    assert np.array_equal(result.output, result.others["once more"].output)


def test_scrambling_changes_every_parameter_and_no_buffer() -> None:
    module = nn.BatchNorm1d(3)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    scramble(module)
    changed = {name for name, tensor in module.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"weight", "bias"}


def test_directions_are_the_numbers_moved_on() -> None:
    problem = build(Case(), "float32")
    moves = problem.direction()
    assert set(moves) == set(problem.needs)
    assert np.array_equal(moves["query"].ravel()[1:], problem.query.ravel()[:-1])
    assert moves["query"].flat[0] == problem.query.flat[-1]
