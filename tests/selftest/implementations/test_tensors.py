"""Gradients of tensors: the cotangent reaches a backward pass as it was given."""

from typing import Any, ClassVar

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from attention_conformance.implementations.adapters.tensors import gradients_of
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.spec.cases import Case
from attention_conformance.spec.inputs import build

QUERY = torch.arange(6.0).reshape(2, 3).requires_grad_()


class Seen(torch.autograd.Function):
    strides: ClassVar[list[tuple[int, ...]]] = []

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor) -> torch.Tensor:
        return query * 2.0

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> torch.Tensor:
        Seen.strides.append(cotangent.stride())
        return cotangent * 2.0


def test_the_strides_of_a_cotangent_are_kept() -> None:
    cotangent = torch.tensor([[3.0], [5.0]]).expand(2, 3)
    found = gradients_of(Seen.apply(QUERY), {"query": QUERY, "unused": QUERY.clone()}, cotangent)  # type: ignore[no-untyped-call]
    assert Seen.strides == [(1, 0)]
    assert found["query"].tolist() == [[6.0] * 3, [10.0] * 3]
    assert not found["unused"].any()


def test_a_cotangent_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"an output of shape \(2, 3\) has no cotangent of shape \(1, 3\)"):
        gradients_of(QUERY * 1.0, {"query": QUERY}, torch.ones(1, 3))


@pytest.mark.parametrize(("kept", "slope"), [(1.0, 6.0), (0.0, 0.0)])
def test_what_is_computed_again_by_a_reentrant_checkpoint_has_gradients(kept: float, slope: float) -> None:
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    x.grad = torch.full((2, 3), 7.0)

    def part(each: torch.Tensor) -> torch.Tensor:
        return 2.0 * (kept * each + (1.0 - kept) * each.detach())

    found = gradients_of(checkpoint(part, x, use_reentrant=True) * 3.0, {"x": x}, torch.ones(2, 3))
    assert found["x"].tolist() == [[slope] * 3] * 2
    assert x.grad.eq(7.0).all()


@pytest.mark.parametrize("needs", [False, True])
def test_an_output_on_another_device_than_the_inputs_is_named(needs: bool) -> None:
    def elsewhere(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (query @ key.mT @ value).to("meta")

    def here(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return query @ key.mT @ value

    problem = build(Case(), "float32")
    problem = problem if needs else problem.forward_only()
    assert torch_op(here)(problem, "cpu").output.shape[:3] == problem.query.shape[:3]
    with pytest.raises(CandidateError, match="returned its output on device 'meta', while the inputs are on 'cpu'"):
        torch_op(elsewhere)(problem, "cpu")
