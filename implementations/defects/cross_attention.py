"""Mistakes of chapter 6: queries from one sequence, keys and values from another."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.layer import Layer, Projected
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.implementations.defects.breaking import CRASH, breaks, breaks_layer

breaks_projected = partial(breaks_layer, step="projected")
breaks_sources = partial(
    breaks_projected, "cross-attention.sources", "cross-attention.lengths", free=False, raises=True
)


@breaks_sources(holds=("relations.causal-prefix", "errors.mask-shape"))
def keys_from_the_queries_sequence(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    return layer.q(query), layer.k(query), layer.v(value)


@breaks_sources(holds=("errors.mask-shape",))
def sequences_exchanged(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    return layer.q(key), layer.k(query), layer.v(query)


@breaks_projected("cross-attention.sources", free=False, holds=("cross-attention.lengths", "projections.output"))
def equal_shapes_taken_for_self_attention(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    if query.shape == key.shape == value.shape:
        key, value = query, query
    return layer.q(query), layer.k(key), layer.v(value)


@breaks_projected(
    "cross-attention.widths", "cross-attention.key-value", holds=("projections.output-bias", "heads.independent")
)
def values_from_the_keys_input(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    return layer.q(query), layer.k(key), layer.v(F.pad(key, (0, value.shape[-1] - key.shape[-1])))


@breaks_projected(
    "cross-attention.widths", holds=("errors.mask-shape", "errors.key-value-length"), severity=CRASH, raises=True
)
def one_width_for_key_and_value(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    k, v = torch.stack((key, value))
    return layer.q(query), layer.k(k), layer.v(v)


@breaks("cross-attention.lengths", holds=("causal.square",), severity=CRASH, raises=True)
def as_many_queries_as_keys(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    rows = torch.arange(query.shape[-2]) % key.shape[-2]
    return Steps()(query[..., rows, :], key, value, **options)


@breaks("cross-attention.single-query", holds=("cross-attention.lengths",))
def single_query_sees_the_last_key(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    return value[..., -1:, :] if query.shape[-2] == 1 and "attn_mask" not in options else output


@breaks_layer(
    "cross-attention.shared-inputs",
    holds=("projections.query", "projections.key", "projections.value", "relations.grad-mode"),
)
class JoinedProductCutInAnotherOrder(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query is key and key is value:
            return self.k(query), self.q(query), self.v(query)
        return super().projected(query, key, value)


@breaks_layer("cross-attention.shared-inputs", holds=("projections.value", "cross-attention.sources"))
class JoinedProductForAnyOtherValue(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return super().projected(query, key, query if query is key and query.shape == value.shape else value)


@breaks_layer("cross-attention.shared-inputs", holds=("projections.bias", "cross-attention.sources"))
class MemoryWithoutBiases(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(query, key, value)
        if key is value and key is not query:
            k, v = F.linear(key, self.k.weight), F.linear(value, self.v.weight)
        return q, k, v
