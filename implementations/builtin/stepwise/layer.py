"""Multi-head attention as a layer: right as it is, and wrong in one place if a subclass replaces a step."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from attention_conformance.implementations.adapters.mha_interface import inputs_of
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import linears
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

FREE_WIDTHS = frozenset({Feature.MODEL_WIDTH, Feature.VALUE_WIDTH, Feature.INPUT_WIDTHS})
ROLES = ("q", "k", "v", "o")
LAYER_PLACES: Mapping[str, str] = linears(**{role: role for role in ROLES})
Construct = Callable[[int, int], object]
Projected: TypeAlias = tuple[Tensor, Tensor, Tensor]


class Layer(nn.Module):
    """Multi-head attention with linear layers; right, unless a subclass replaces a step."""

    steps = Steps()
    o: nn.Linear

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.num_heads = problem.num_heads
        self.q, self.k, self.v = (_linear(problem, role) for role in "qkv")
        if "w_o" in problem.parameters:
            self.o = _linear(problem, "o")

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> Projected:
        return self.q(query), self.k(key), self.v(value)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(2)

    def output(self, merged: Tensor) -> Tensor:
        result: Tensor = self.o(merged) if hasattr(self, "o") else merged
        return result

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """The output of every head, (B, H, Lq, d_v)."""
        return self.steps(q, k, v, **options)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        """(B, L, width) in and out."""
        q, k, v = (self.split(x) for x in self.projected(query, key, value))
        return self.output(self.merge(self.attend(q, k, v, **options)))


def _linear(problem: Problem, role: str) -> nn.Linear:
    rows, columns = problem.parameters[f"w_{role}"].shape
    return nn.Linear(rows, columns, bias=f"b_{role}" in problem.parameters)


def call_layer(module: nn.Module, given: Tensors, problem: Problem) -> Any:
    masks: dict[str, Any] = {n: given[n] for n in ("attn_mask", "key_padding_mask", "valid_lens") if n in given}
    return module(*inputs_of(given), **masks, is_causal=problem.causal)
