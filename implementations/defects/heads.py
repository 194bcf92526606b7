"""Mistakes of chapter 4: which numbers belong to which head."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import Steps, score, softmax
from attention_conformance.implementations.defects.breaking import LEAK, breaks, breaks_layer

leaks = partial(breaks_layer, severity=LEAK)
breaks_merge = partial(breaks_layer, "heads.merge", step="merge", holds=("projections.output-bias", "shapes.output"))


@breaks("heads.independent", step="softmax", holds=("shapes.output", "relations.permute-keys"))
def softmax_over_heads_too(scores: Tensor) -> Tensor:
    joined = softmax(scores.transpose(1, 2).flatten(2))
    return joined.view(scores.transpose(1, 2).shape).transpose(1, 2)


@breaks("heads.independent", holds=("shapes.output", "values.single-key"))
def keys_of_the_first_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key[:, :1].expand_as(key), value, **options)


@breaks("heads.independent", "softmax.over-keys", holds=("errors.width", "errors.mask-shape"), raises=True)
def attention_over_the_heads(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), **options).transpose(1, 2)


@breaks("relations.permute-heads", step="score", holds=("relations.permute-keys", "shapes.output"))
def scale_by_number_of_the_head(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by) * (1.0 + 0.1 * torch.arange(query.shape[1])[:, None, None])


@leaks("heads.split", step="split", holds=("projections.output-bias", "shapes.output"))
def split_in_one_step(layer: Layer, x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], layer.num_heads, x.shape[1], -1)


@breaks_layer("heads.split", step="split", holds=("projections.output-bias", "shapes.output"))
def columns_dealt_out_in_turn(layer: Layer, x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], -1, layer.num_heads).permute(0, 3, 1, 2)


@breaks_merge(severity=LEAK)
def merge_in_one_step(layer: Layer, heads: Tensor) -> Tensor:
    return heads.reshape(heads.shape[0], heads.shape[2], -1)


@breaks_merge()
def heads_shuffled_together(layer: Layer, heads: Tensor) -> Tensor:
    return heads.permute(0, 2, 3, 1).flatten(2)


@breaks_merge()
def heads_joined_backwards(layer: Layer, heads: Tensor) -> Tensor:
    return heads.flip(1).transpose(1, 2).flatten(2)


@leaks("relations.batch", "softmax.over-keys", holds=("errors.mask-shape", "errors.key-value-length"), raises=True)
class SamplesTakenForTokens(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        rotated = (x.transpose(0, 1) for x in (query, key, value))
        answer: Tensor = super().forward(*rotated, **options)
        return answer.transpose(0, 1)
