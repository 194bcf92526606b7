"""Mistakes of chapter 6: queries from one sequence, keys and values from another."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.implementations.defects.breaking import CRASH, breaks, breaks_layer

breaks_sources = partial(breaks_layer, "cross-attention.sources", "cross-attention.lengths", free=False, raises=True)


@breaks_sources(holds=("relations.causal-prefix", "errors.mask-shape"))
class KeysFromTheQueriesSequence(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(query), self.v(value)


@breaks_sources(holds=("errors.mask-shape",))
class SequencesExchanged(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(key), self.k(query), self.v(query)


@breaks_layer("cross-attention.sources", free=False, holds=("cross-attention.lengths", "projections.output"))
class EqualShapesTakenForSelfAttention(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query.shape == key.shape == value.shape:
            key, value = query, query
        return self.q(query), self.k(key), self.v(value)


@breaks_layer(
    "cross-attention.widths", "cross-attention.key-value", holds=("projections.output-bias", "heads.independent")
)
class ValuesFromTheKeysInput(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(key), self.v(F.pad(key, (0, value.shape[-1] - key.shape[-1])))


@breaks_layer(
    "cross-attention.widths",
    free=True,
    holds=("errors.mask-shape", "errors.key-value-length"),
    severity=CRASH,
    raises=True,
)
class OneWidthForKeyAndValue(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = torch.stack((key, value))
        return self.q(query), self.k(k), self.v(v)


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


@breaks_layer("cross-attention.shared-inputs", holds=("projections.bias", "cross-attention.sources"))
class MemoryWithoutBiases(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(query, key, value)
        if key is value and key is not query:
            k, v = F.linear(key, self.k.weight), F.linear(value, self.v.weight)
        return q, k, v
