"""Mistakes of chapter 5: the matrices and biases around the heads."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_conformance.implementations.builtin.stepwise.layer import Layer, Projected
from attention_conformance.implementations.defects.breaking import CRASH, breaks_layer

breaks_projected = partial(breaks_layer, step="projected")
breaks_output = partial(breaks_layer, step="output")
breaks_square = partial(breaks_projected, free=False)


@breaks_square("projections.query", "projections.key", holds=("projections.value", "projections.output-bias"))
def query_and_key_exchanged(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    return layer.k(query), layer.q(key), layer.v(value)


@breaks_square("projections.key", "projections.value", holds=("projections.output-bias", "heads.independent"))
def key_and_value_exchanged(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    return layer.q(query), layer.v(key), layer.k(value)


@breaks_square("projections.key", holds=("projections.value", "projections.output-bias"))
def keys_by_the_queries_matrix(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    return layer.q(query), layer.q(key), layer.v(value)


@breaks_square("projections.value", holds=("projections.output-bias", "heads.independent"))
def values_by_the_keys_matrix(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    return layer.q(query), layer.k(key), layer.k(value)


@breaks_square(
    "projections.query", "projections.key", "projections.value", holds=("projections.output-bias", "shapes.output")
)
def packed_matrix_read_head_by_head(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    linears, extents = (layer.q, layer.k, layer.v), (layer.num_heads, 3, -1)
    weights = torch.cat([linear.weight for linear in linears]).unflatten(0, extents).unbind(1)
    biases = torch.cat([linear.bias for linear in linears]).unflatten(0, extents).unbind(1)
    inputs = zip((query, key, value), weights, biases, strict=True)
    q, k, v = (F.linear(x, weight.flatten(0, 1), bias.flatten()) for x, weight, bias in inputs)
    return q, k, v


@breaks_square("projections.query", holds=("projections.value", "projections.output-bias"))
def query_matrix_transposed(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    return query @ layer.q.weight + layer.q.bias, layer.k(key), layer.v(value)


@breaks_projected("projections.bias", holds=("projections.output-bias",))
def bias_of_queries_forgotten(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    return F.linear(query, layer.q.weight), layer.k(key), layer.v(value)


@breaks_projected("projections.bias", holds=("projections.output-bias", "heads.independent"))
def bias_of_values_forgotten(layer: Layer, query: Tensor, key: Tensor, value: Tensor) -> Projected:
    return layer.q(query), layer.k(key), F.linear(value, layer.v.weight)


@breaks_layer("projections.bias", holds=("projections.output-bias", "heads.independent"))
class BiasOfQueriesNotScaled(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by = (self.q.out_features // self.num_heads) ** -0.5
        return F.linear(query, self.q.weight * by, self.q.bias), self.k(key), self.v(value)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return self.steps(q, k, v, scale=1.0, **options)


@breaks_output("projections.output", holds=("projections.output-bias", "shapes.output"), free=False)
def output_matrix_transposed(layer: Layer, merged: Tensor) -> Tensor:
    return merged @ layer.o.weight + layer.o.bias


@breaks_output("projections.output", holds=("projections.output-bias", "shapes.output"), free=False)
def output_matrix_of_the_first_head(layer: Layer, merged: Tensor) -> Tensor:
    block = layer.o.weight[:, : merged.shape[-1] // layer.num_heads]
    return F.linear(merged, block.repeat(1, layer.num_heads), layer.o.bias)


@breaks_output("projections.output-bias", "projections.output", holds=("heads.independent", "shapes.output"))
def output_bias_once_per_head(layer: Layer, merged: Tensor) -> Tensor:
    return F.linear(merged, layer.o.weight) + layer.num_heads * layer.o.bias


@breaks_output("projections.output-bias", holds=("heads.independent", "shapes.output"))
def output_bias_forgotten(layer: Layer, merged: Tensor) -> Tensor:
    return F.linear(merged, layer.o.weight)


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
