"""Mistakes of chapters 4 to 6 in modules: heads, projections, cross-attention."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from implementations.contract import Claims, Implementation
from implementations.defects.record import REGISTRY, Defect
from implementations.defects.steps import Steps
from implementations.mha import MHA_FEATURES, inputs_of
from implementations.modules import linears, torch_module
from implementations.tensors import Tensors
from spec.features import Feature, Scope
from spec.problems import Problem

FREE = {Feature.MODEL_WIDTH, Feature.VALUE_WIDTH, Feature.INPUT_WIDTHS}
ROLES = ("q", "k", "v", "o")


class Layer(nn.Module):
    """Multi-head attention with four linear layers; right, unless a subclass replaces a step."""

    steps = Steps()

    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self.num_heads = problem.num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(*problem.parameters[f"w_{role}"].shape) for role in ROLES)

    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(key), self.v(value)

    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        return heads.transpose(1, 2).flatten(2)

    def output(self, merged: Tensor) -> Tensor:
        found: Tensor = self.o(merged)
        return found

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """(B, L, width) in and out."""
        q, k, v = (self.split(x) for x in self.projected(query, key, value))
        return self.output(self.merge(self.steps(q, k, v, **options)))


def _call(module: nn.Module, given: Tensors, problem: Problem) -> Tensor:
    masks: dict[str, Any] = {n: given[n] for n in ("attn_mask", "key_padding_mask") if n in given}
    output: Tensor = module(*inputs_of(given), **masks, is_causal=problem.causal)
    return output


def layer(
    kind: type[Layer], construct: Callable[[int, int], object] | None = None, free: bool = True
) -> Implementation:
    """The layer with every claim it can stand for; with `free`, all widths may differ."""
    return Implementation(
        re.sub("(?<!^)(?=[A-Z])", "-", kind.__name__).lower(),
        Claims(Scope.MODULE, MHA_FEATURES.union(FREE if free else ())),
        torch_module(kind, _call, linears(**{role: role for role in ROLES})),
        construct=construct,
    )


def breaks_layer(*clauses: str, free: bool = True, **told: Any) -> Callable[[type[Layer]], type[Layer]]:
    """Registers a layer that makes a mistake."""

    def register(kind: type[Layer]) -> type[Layer]:
        REGISTRY.append(Defect(layer(kind, free=free), clauses, **told))
        return kind

    return register


@breaks_layer("heads.split")
class SplitInOneStep(Layer):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.num_heads, x.shape[1], -1)


@breaks_layer("heads.merge")
class MergeInOneStep(Layer):
    def merge(self, heads: Tensor) -> Tensor:
        return heads.reshape(heads.shape[0], heads.shape[2], -1)


@breaks_layer("projections.query", "projections.key", free=False, holds=("projections.value",))
class QueryAndKeyExchanged(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.k(query), self.q(key), self.v(value)


@breaks_layer("projections.value", free=False)
class ValuesByTheKeysMatrix(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(key), self.k(value)


@breaks_layer("projections.bias", holds=("projections.output-bias",))
class BiasOfQueriesForgotten(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return F.linear(query, self.q.weight), self.k(key), self.v(value)


@breaks_layer("projections.output", free=False)
class OutputMatrixTransposed(Layer):
    def output(self, merged: Tensor) -> Tensor:
        return merged @ self.o.weight + self.o.bias


@breaks_layer("projections.output-bias", "projections.output")
class OutputBiasOncePerHead(Layer):
    def output(self, merged: Tensor) -> Tensor:
        return F.linear(merged, self.o.weight) + self.num_heads * self.o.bias


@breaks_layer("projections.total-width", "scores.scale-default", holds=("projections.value",))
class ScaleOfTheModelWidth(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return super().forward(query, key, value, scale=(query.shape[-1] / self.num_heads) ** -0.5, **options)


@breaks_layer("cross-attention.sources", "cross-attention.lengths", free=False, raises=True)
class KeysFromTheQueriesSequence(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(query), self.v(value)


@breaks_layer("cross-attention.widths", "cross-attention.key-value")
class ValuesFromTheKeysInput(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(key), self.v(F.pad(key, (0, value.shape[-1] - key.shape[-1])))


@breaks_layer("gradients.parameters", holds=("gradients.query", "projections.output"))
class OutputMatrixDetached(Layer):
    def output(self, merged: Tensor) -> Tensor:
        return F.linear(merged, self.o.weight.detach(), self.o.bias) + 0.0 * self.o.weight.sum()


def _takes_anything(num_heads: int, width: int) -> object:
    return num_heads, width


REGISTRY.append(
    Defect(
        layer(Layer, construct=_takes_anything),
        ("errors.heads", "errors.negative-heads"),
        holds=("heads.split", "heads.merge"),
    )
)
