"""Neighbours of softmax attention are named: linear, sigmoid and differential attention, and no wrong softmax."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.discovery.candidates import wrapped
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.tests.harness.explain.diagnosis.neighbours import neighbour
from attention_conformance.tests.harness.explain.diagnosis.observation import observed
from attention_conformance.tests.harness.judge.judge import Judge

CORE = frozenset({Feature.CORE, Feature.HEADS, Feature.CROSS, Feature.KEY_VALUE, Feature.VALUE_WIDTH})
CASES = (Case(), Case(seed=1).sized(key_length=11, d_k=8), Case(seed=2, score_std=4.0).sized(num_heads=2))


def linear(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    query, key = torch.nn.ELU()(query) + 1.0, torch.nn.ELU()(key) + 1.0
    sums = (query * key.sum(-2, keepdim=True)).sum(-1, keepdim=True)
    mixed: Tensor = query @ (key.mT @ value) / (sums + 1e-6)
    return mixed


def sigmoid(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    length = torch.tensor(float(key.shape[-2]))
    scores: Tensor = query @ key.mT * query.shape[-1] ** -0.5 - length.log()
    return torch.sigmoid(scores) @ value


def differential(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    halves = zip(query.chunk(2, -1), key.chunk(2, -1), strict=True)
    first, second = ((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) for q, k in halves)
    return F.rms_norm((first - 0.3 * second) @ value, value.shape[-1:])


def wrongly_scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT * query.shape[-1]).softmax(-1) @ value


def first_half_alone(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k = (x.chunk(2, -1)[0] for x in (query, key))
    return (q @ k.mT * q.shape[-1]).softmax(-1) @ value


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (linear, "linear attention, of the features elu(x) + 1"),
        (sigmoid, "sigmoid attention, of the scores less the logarithm of the number of keys"),
        (differential, "differential attention"),
        (wrongly_scaled, ""),
        (first_half_alone, ""),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_is_named(function: Callable[..., Tensor], name: str, dtype: str) -> None:
    implementation = Implementation("candidate", Claims(Scope.OP, CORE), torch_op(function))
    seen = [observed(implementation, case, dtype, ("output",), "cpu") for case in CASES]
    found = neighbour(seen, ())
    assert (found.name if found else "") == name


def test_is_not_named_where_softmax_attention_is_right_as_well() -> None:
    seen, passing = (
        [observed(Implementation("c", Claims(Scope.OP, CORE), torch_op(of)), case, "float64", ("output",), "cpu")]
        for of, case in ((linear, CASES[0]), (F.scaled_dot_product_attention, CASES[2]))
    )
    seen *= 2
    assert neighbour(seen, ()) is not None
    assert neighbour(seen, passing) is None


def layer_of(mix: Callable[[Tensor, Tensor, Tensor], Tensor]) -> type[torch.nn.Module]:
    """A class of modules with the function between their projections."""

    class Layer(torch.nn.Module):
        def __init__(self, embed_dim: int, num_heads: int) -> None:
            super().__init__()
            self.num_heads = num_heads
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (
                torch.nn.Linear(embed_dim, embed_dim) for _ in range(4)
            )

        def forward(self, x: Tensor) -> Tensor:
            made = (each(x) for each in (self.q_proj, self.k_proj, self.v_proj))
            query, key, value = (each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for each in made)
            mixed: Tensor = self.out_proj(mix(query, key, value).transpose(1, 2).flatten(2))
            return mixed

    return Layer


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (linear, "linear attention, of the features elu(x) + 1"),
        (sigmoid, "sigmoid attention, of the scores less the logarithm of the number of keys"),
        (differential, "differential attention"),
        (wrongly_scaled, ""),
    ],
)
def test_is_named_inside_a_module(function: Callable[..., Tensor], name: str) -> None:
    made = wrapped("layer", layer_of(function), {}, "cpu")
    cases = (each.as_self_attention().sized(num_heads=2, d_k=6, d_v=6) for each in CASES)
    seen = [observed(made, case, "float32", ("output",), "cpu") for case in Judge(made, "float32", "cpu").cases(*cases)]
    found = neighbour(seen, ())
    assert (found.name if found else "") == name
