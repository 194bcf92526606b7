"""Causes that come before conditions and backward passes: equal calls that differ, and inputs that are changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.spec.cases import Case, MaskKind
from attention_conformance.spec.features import Scope
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis, FailingCheck
from attention_conformance.tests.harness.explain.diagnosis.diagnosis import diagnose

WIDE = (Case(seed=1).sized(d_k=5), Case(seed=2).sized(key_length=70), Case(seed=3, score_std=3.0))


def diagnosed(function: Callable[..., Tensor], part: str, *cases: Case) -> Diagnosis:
    implementation = Implementation("candidate", Claims(Scope.OP, OP_FEATURES), torch_op(function))
    checks = [FailingCheck("numerics.bound", case, "float64", part) for case in cases]
    diagnosis = diagnose(implementation, checks, dtypes=("float64",), several=False)
    assert diagnosis is not None
    return diagnosis


@pytest.mark.parametrize("often", [0.1, 0.5])
def test_what_fails_by_chance_has_no_condition(often: float) -> None:
    die = np.random.default_rng(5)

    def sometimes(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return Steps()(query, key, value, **options) * (float("nan") if die.random() < often else 1.0)

    found = diagnosed(sometimes, "output", *WIDE)
    assert (found.name, found.when, found.differ) == ("", (), True)
    assert str(found).startswith("equal calls differ: ")


def test_what_always_fails_has_its_condition() -> None:
    def odd(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return Steps()(query, key, value, **options) * (float("nan") if query.shape[-1] % 2 else 1.0)

    found = diagnosed(odd, "output", WIDE[0])
    assert not found.differ
    assert found.when[0] == "with odd head width"


def query_in_place(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    with torch.no_grad():
        query.mul_(0.25)
    scale = options.get("scale")
    usual = query.shape[-1] ** -0.5 if scale is None else scale
    return Steps()(query, key, value, **{**options, "scale": 4.0 * usual})


def value_in_place(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    value.detach().mul_(2.0)
    return output


class InBackward(torch.autograd.Function):
    """Writes into the key as the gradient comes back."""

    @staticmethod
    def forward(context: Any, output: Tensor, key: Tensor) -> Tensor:
        context.key = key
        return output.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        context.key.mul_(3.0)
        return gradients[0], None


def key_in_backward(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    spoiled: Tensor = InBackward.apply(output, key.detach())  # type: ignore[no-untyped-call]
    return spoiled


CHANGING = {
    "query": (query_in_place, "gradients.query"),
    "value": (value_in_place, "gradients.query"),
    "key": (key_in_backward, "gradients.query"),
}


@pytest.mark.parametrize(("function", "part"), CHANGING.values(), ids=CHANGING)
def test_a_changed_input_is_named_before_the_gradients_that_it_spoils(
    function: Callable[..., Tensor], part: str, request: pytest.FixtureRequest
) -> None:
    found = diagnosed(function, part, Case(), Case(seed=1, mask=MaskKind.BOOL))
    assert found.name == f"{request.node.callspec.id} changed in place"
    assert found.telling == ("effects.inputs",)


def test_a_wrong_gradient_alone_is_none() -> None:
    def doubled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return Steps()(2.0 * query - query.detach(), key, value, **options)

    found = diagnosed(doubled, "gradients.query", Case(), Case(seed=1))
    assert "changed in place" not in found.name
    assert found.telling != ("effects.inputs",)
