"""Mistakes of chapter 5: the matrices and biases around the heads."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.defects.breaking import CRASH, breaks_layer

breaks_square = partial(breaks_layer, free=False)


@breaks_square("projections.query", "projections.key", holds=("projections.value", "projections.output-bias"))
class QueryAndKeyExchanged(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.k(query), self.q(key), self.v(value)


@breaks_square("projections.key", "projections.value", holds=("projections.output-bias", "heads.independent"))
class KeyAndValueExchanged(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.v(key), self.k(value)


@breaks_square("projections.key", holds=("projections.value", "projections.output-bias"))
class KeysByTheQueriesMatrix(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.q(key), self.v(value)


@breaks_square("projections.value", holds=("projections.output-bias", "heads.independent"))
class ValuesByTheKeysMatrix(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(key), self.k(value)


@breaks_square(
    "projections.query", "projections.key", "projections.value", holds=("projections.output-bias", "shapes.output")
)
class PackedMatrixReadHeadByHead(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        layers = (self.q, self.k, self.v)
        weights, biases = (
            torch.cat([getattr(layer, part) for layer in layers]).unflatten(0, (self.num_heads, 3, -1))
            for part in ("weight", "bias")
        )
        q, k, v = (
            F.linear(x, weights[:, i].flatten(0, 1), biases[:, i].flatten()) for i, x in enumerate((query, key, value))
        )
        return q, k, v


@breaks_square("projections.query", holds=("projections.value", "projections.output-bias"))
class QueryMatrixTransposed(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query @ self.q.weight + self.q.bias, self.k(key), self.v(value)


@breaks_layer("projections.bias", holds=("projections.output-bias",))
class BiasOfQueriesForgotten(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return F.linear(query, self.q.weight), self.k(key), self.v(value)


@breaks_layer("projections.bias", holds=("projections.output-bias", "heads.independent"))
class BiasOfValuesForgotten(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(key), F.linear(value, self.v.weight)


@breaks_layer("projections.bias", holds=("projections.output-bias", "heads.independent"))
class BiasOfQueriesNotScaled(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by = (self.q.out_features // self.num_heads) ** -0.5
        return F.linear(query, self.q.weight * by, self.q.bias), self.k(key), self.v(value)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return self.steps(q, k, v, scale=1.0, **options)


@breaks_square("projections.output", holds=("projections.output-bias", "shapes.output"))
class OutputMatrixTransposed(Layer):
    def output(self, merged: Tensor) -> Tensor:
        return merged @ self.o.weight + self.o.bias


@breaks_square("projections.output", holds=("projections.output-bias", "shapes.output"))
class OutputMatrixOfTheFirstHead(Layer):
    def output(self, merged: Tensor) -> Tensor:
        block = self.o.weight[:, : merged.shape[-1] // self.num_heads]
        return F.linear(merged, block.repeat(1, self.num_heads), self.o.bias)


@breaks_layer("projections.output-bias", "projections.output", holds=("heads.independent", "shapes.output"))
class OutputBiasOncePerHead(Layer):
    def output(self, merged: Tensor) -> Tensor:
        return F.linear(merged, self.o.weight) + self.num_heads * self.o.bias


@breaks_layer("projections.output-bias", holds=("heads.independent", "shapes.output"))
class OutputBiasForgotten(Layer):
    def output(self, merged: Tensor) -> Tensor:
        return F.linear(merged, self.o.weight)


@breaks_layer("projections.total-width", "scores.scale-default", holds=("projections.value",))
class ScaleOfTheModelWidth(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        return super().forward(query, key, value, scale=(query.shape[-1] / self.num_heads) ** -0.5, **options)


@breaks_layer(
    "projections.total-width", construct=nn.MultiheadAttention, holds=("errors.heads",), severity=CRASH, raises=True
)
class MergedToTheWidthOfTheInput(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        q, k, v = (self.split(x) for x in self.projected(query, key, value))
        heads = self.attend(q, k, v, **options).transpose(1, 2)
        return self.output(heads.reshape(query.shape[0], -1, query.shape[-1]))
