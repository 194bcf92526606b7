"""Mistakes of chapter 6: queries from one sequence, keys and values from another."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import Steps
from attention_conformance.implementations.defects.breaking import CRASH, breaks, breaks_layer, github


@breaks_layer(
    "cross-attention.sources",
    "cross-attention.lengths",
    free=False,
    holds=("relations.causal-prefix", "errors.mask-shape"),
    raises=True,
).entry(
    does="Projects the keys from the sequence of the queries.",
    repair="Take keys and values from the second sequence.",
    hides="Self-attention.",
)
class KeysFromTheQueriesSequence(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(query), self.v(value)


@breaks_layer(
    "cross-attention.sources", "cross-attention.lengths", free=False, holds=("errors.mask-shape",), raises=True
).entry(
    does="Exchanges the two sequences: the encoder's tokens query the decoder's.",
    repair="Take the queries from the decoder, keys and values from the encoder.",
    hides="Self-attention; checks of shapes with sequences of one length.",
    matters="Interfaces differ in the order of their inputs; the answer has as many rows as the wrong sequence.",
)
class SequencesExchanged(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(key), self.k(query), self.v(query)


@breaks_layer("cross-attention.sources", free=False, holds=("cross-attention.lengths", "projections.output")).entry(
    does="Takes two sequences of one shape for self-attention, and reads the first only.",
    repair="Decide by what the caller passes, not by shapes.",
    hides="Self-attention, and sequences of different lengths.",
    matters="A fast path for self-attention that is chosen by shape answers for cross-attention.",
)
class EqualShapesTakenForSelfAttention(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query.shape == key.shape == value.shape:
            key, value = query, query
        return self.q(query), self.k(key), self.v(value)


@breaks_layer(
    "cross-attention.widths", "cross-attention.key-value", holds=("projections.output-bias", "heads.independent")
).entry(
    does="Projects the values from the key input.",
    repair="Project the values from the value input.",
    hides="Keys and values from one input, which is the usual way to call it.",
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
).entry(
    does="Requires a key input as wide as the value input.",
    repair="Project each input by a matrix with as many rows as that input has columns.",
    hides="Inputs of one width.",
    links=github("pytorch/pytorch/issues/120793"),
)
class OneWidthForKeyAndValue(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = torch.stack((key, value))
        return self.q(query), self.k(k), self.v(v)


@breaks("cross-attention.lengths", holds=("causal.square",), severity=CRASH, raises=True).entry(
    does="Makes as many output rows as there are keys.",
    repair="Loop over the queries, and allocate the output with their number.",
    hides="As many queries as keys.",
)
def as_many_queries_as_keys(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    rows = torch.arange(query.shape[-2]) % key.shape[-2]
    return Steps()(query[..., rows, :], key, value, **options)


@breaks("cross-attention.single-query", holds=("cross-attention.lengths",)).entry(
    does="Answers a single query with the last value alone.",
    repair="Give a single query the softmax over all keys, as any other.",
    hides="Two queries and more; a single key.",
    matters="Generation: the path for one new token is another than that for the prompt.",
)
def single_query_sees_the_last_key(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    return value[..., -1:, :] if query.shape[-2] == 1 and "attn_mask" not in options else output


@breaks_layer(
    "cross-attention.shared-inputs",
    holds=("projections.query", "projections.key", "projections.value", "relations.grad-mode"),
).entry(
    does="Takes the keys for the queries, and the queries for the keys, out of one product where it attends to itself.",
    repair="Cut the joined product in the order in which its matrices are joined.",
    hides="Tests with three tensors, be their numbers the same: the path is chosen by identity.",
    matters="Self-attention, the most common use, queries with its keys; cross-attention is right.",
)
class JoinedProductCutInAnotherOrder(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if query is key and key is value:
            return self.k(query), self.q(query), self.v(query)
        return super().projected(query, key, value)


@breaks_layer("cross-attention.shared-inputs", holds=("projections.bias", "cross-attention.sources")).entry(
    does="Omits the biases of keys and values where it projects both in one product.",
    repair="Add each bias on every path.",
    hides="Modules without biases; keys and values in different tensors; biases that are still 0.",
    matters="A decoder reads the encoder's memory wrongly, and its self-attention is right.",
)
class MemoryWithoutBiases(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().projected(query, key, value)
        if key is value and key is not query:
            k, v = F.linear(key, self.k.weight), F.linear(value, self.v.weight)
        return q, k, v
