"""Mistakes of chapter 5: the matrices and biases around the heads."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.defects.breaking import CRASH, breaks_layer, github


@breaks_layer(
    "projections.query", "projections.key", free=False, holds=("projections.value", "projections.output-bias")
).entry(
    does="Projects queries by the keys' matrix, and keys by the queries'.",
    repair="Keep the order query, key, value wherever the three are packed or unpacked.",
    hides="Random weights of one's own; equal matrices.",
)
class QueryAndKeyExchanged(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.k(query), self.q(key), self.v(value)


@breaks_layer(
    "projections.key", "projections.value", free=False, holds=("projections.output-bias", "heads.independent")
).entry(
    does="Projects keys by the values' matrix, and values by the keys'.",
    repair="Return the three projections in the order in which they are taken.",
    hides="Random weights of one's own; inputs that are used without projection.",
    matters="Loaded checkpoints give nonsense, while training from scratch works.",
    links=github("jsbaan/transformer-from-scratch/issues/1"),
)
class KeyAndValueExchanged(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.v(key), self.k(value)


@breaks_layer("projections.key", free=False, holds=("projections.value", "projections.output-bias")).entry(
    does="Projects the keys by the queries' matrix.",
    repair="Give the keys a matrix of their own.",
    hides="Equal matrices; checks of shapes.",
    matters="Each token attends to tokens like itself, and half of the learned scores is lost.",
)
class KeysByTheQueriesMatrix(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.q(key), self.v(value)


@breaks_layer("projections.value", free=False, holds=("projections.output-bias", "heads.independent")).entry(
    does="Projects the values by the keys' matrix.",
    repair="Project the values by their own matrix.",
    hides="Equal matrices; checks of shapes.",
    matters="A wrong letter in teaching code; the values' matrix never learns.",
    links=github("yflyzhang/AnnotatedTransformer/issues/1"),
)
class ValuesByTheKeysMatrix(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(key), self.k(value)


@breaks_layer(
    "projections.query",
    "projections.key",
    "projections.value",
    free=False,
    holds=("projections.output-bias", "shapes.output"),
).entry(
    does="Reads a matrix packed as query, key, value as if the three alternated from head to head.",
    repair="Read (3, H, d) where it was packed so, and (H, 3, d) only where it was packed head by head.",
    hides="A single head; random weights of one's own.",
    matters="Checkpoints of one layout in the code of another: in places some heads are right by accident.",
    links=github("awslabs/slapo/pull/46", "vllm-project/vllm/issues/42803", "1bit-MONSTER/1bit-MONSTER/issues/2451"),
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


@breaks_layer("projections.query", free=False, holds=("projections.value", "projections.output-bias")).entry(
    does="Multiplies by the query matrix as it is stored, which is its transpose.",
    repair="Transpose stored matrices once, where the checkpoint is read.",
    hides="Symmetric matrices, the identity among them.",
    matters="Checkpoints pass between libraries that store input by output and output by input.",
)
class QueryMatrixTransposed(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return query @ self.q.weight + self.q.bias, self.k(key), self.v(value)


@breaks_layer("projections.bias", holds=("projections.output-bias",)).entry(
    does="Leaves the bias of the queries out.",
    repair="Add each bias to its own projection.",
    hides="Biases of zeros, with which most modules start.",
    matters="Right before training, wrong after it.",
)
class BiasOfQueriesForgotten(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return F.linear(query, self.q.weight), self.k(key), self.v(value)


@breaks_layer("projections.bias", holds=("projections.output-bias", "heads.independent")).entry(
    does="Leaves the bias of the values out.",
    repair="Add each bias to its own projection.",
    hides="Biases of zeros, with which most modules start.",
    matters="The output of each head is off by a constant, which a check of differences does not see.",
)
class BiasOfValuesForgotten(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), self.k(key), F.linear(value, self.v.weight)


@breaks_layer("projections.bias", holds=("projections.output-bias", "heads.independent")).entry(
    does="Scales the queries before it adds their bias, so that the bias stays unscaled.",
    repair="Add the bias first, or scale it as well.",
    hides="Biases of zeros; heads of width 1.",
    matters="A scale folded into the query matrix, and not into its bias: trained models attend wrongly.",
)
class BiasOfQueriesNotScaled(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        by = (self.q.out_features // self.num_heads) ** -0.5
        return F.linear(query, self.q.weight * by, self.q.bias), self.k(key), self.v(value)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return self.steps(q, k, v, scale=1.0, **options)


@breaks_layer("projections.output", free=False, holds=("projections.output-bias", "shapes.output")).entry(
    does="Multiplies the joined heads by the transpose of the output matrix.",
    repair="Transpose stored matrices once, where the checkpoint is read.",
    hides="Symmetric matrices; an output matrix of one's own training.",
)
class OutputMatrixTransposed(Layer):
    def output(self, merged: Tensor) -> Tensor:
        return merged @ self.o.weight + self.o.bias


@breaks_layer("projections.output", free=False, holds=("projections.output-bias", "shapes.output")).entry(
    does="Multiplies the inputs of the output projection by head, each by the first block of its matrix.",
    repair="Join all heads before the output matrix, which mixes them.",
    hides="A single head; an output matrix with equal blocks.",
)
class OutputMatrixOfTheFirstHead(Layer):
    def output(self, merged: Tensor) -> Tensor:
        block = self.o.weight[:, : merged.shape[-1] // self.num_heads]
        return F.linear(merged, block.repeat(1, self.num_heads), self.o.bias)


@breaks_layer("projections.output-bias", "projections.output", holds=("heads.independent", "shapes.output")).entry(
    does="Adds the output bias once for each head.",
    repair="Add the output bias once, after the heads have been summed.",
    hides="A single head; a bias of zeros, the usual start.",
    matters="Tensor-parallel code in which every part adds the bias before the parts are summed.",
)
class OutputBiasOncePerHead(Layer):
    def output(self, merged: Tensor) -> Tensor:
        return F.linear(merged, self.o.weight) + self.num_heads * self.o.bias


@breaks_layer("projections.output-bias", holds=("heads.independent", "shapes.output")).entry(
    does="Leaves the bias of the output projection out.",
    repair="Add the bias of the output projection to every token.",
    hides="A bias of zeros, the usual start.",
    matters="A flag for the other biases switches this one off too, or the other way round.",
    links=github("pytorch/pytorch/issues/52257", "d2l-ai/d2l-en/pull/439"),
)
class OutputBiasForgotten(Layer):
    def output(self, merged: Tensor) -> Tensor:
        return F.linear(merged, self.o.weight)


@breaks_layer("projections.total-width", "scores.scale-default", holds=("projections.value",)).entry(
    does="Divides the width of the input by the number of heads, and takes that for the scale.",
    repair="Take the width of one head from the projected and split query.",
    hides="An input as wide as all heads together.",
    matters="Models with narrow or wide heads, as pruned ones are.",
)
class ScaleOfTheModelWidth(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        answer: Tensor = super().forward(query, key, value, scale=(query.shape[-1] / self.num_heads) ** -0.5, **options)
        return answer


@breaks_layer(
    "projections.total-width", construct=nn.MultiheadAttention, holds=("errors.heads",), severity=CRASH, raises=True
).entry(
    does="Reshapes the joined heads to the width of the input.",
    repair="Reshape to H times the width of one value.",
    hides="An input as wide as all heads together.",
    matters="Modules whose keys or values have widths of their own crash, or mix tokens.",
    links=github("pytorch/text/issues/1371", "pytorch/pytorch/issues/27623"),
)
class MergedToTheWidthOfTheInput(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        q, k, v = (self.split(x) for x in self.projected(query, key, value))
        heads = self.attend(q, k, v, **options).transpose(1, 2)
        return self.output(heads.reshape(query.shape[0], -1, query.shape[-1]))
