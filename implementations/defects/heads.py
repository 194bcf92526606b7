"""Mistakes of chapter 4: which numbers belong to which head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import Steps, score, softmax
from attention_conformance.implementations.defects.breaking import LEAK, breaks, breaks_layer, github


@breaks("heads.independent", step="softmax", holds=("shapes.output", "relations.permute-keys")).entry(
    does="Takes one softmax over the keys of all heads.",
    repair="Take the softmax over the last axis only, with the heads on an axis of their own.",
    hides="A single head; averaged weights that are compared up to a factor.",
    matters="The weights of a head sum to about 1/H: a detection model of renown was trained so.",
    links=github("facebookresearch/detr/issues/247"),
)
def softmax_over_heads_too(scores: Tensor) -> Tensor:
    joined = softmax(scores.transpose(1, 2).flatten(2))
    return joined.view(scores.transpose(1, 2).shape).transpose(1, 2)


@breaks("heads.independent", holds=("shapes.output", "values.single-key")).entry(
    does="Reads the keys of the first head for every head.",
    repair="Compute a head's offset from its own stride.",
    hides="A single head, and heads with the same keys.",
    matters="An offset divided away by strides sent every head to head 0.",
    links=github("BobMcDear/attorch/issues/14"),
)
def keys_of_the_first_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key[:, :1].expand_as(key), value, **options)


@breaks("heads.independent", "softmax.over-keys", holds=("errors.width", "errors.mask-shape"), raises=True).entry(
    does="Attends over the heads of one token, because the arrays are read as (B, L, H, d).",
    repair="Move the head axis before the tokens, or state which layout the kernel takes.",
    hides="Checks of shapes: with as many queries as keys the output has the right one.",
    matters="Libraries differ in the layout, some under one name; tokens then see nothing of one another.",
    links=github("ml-explore/mlx/issues/3585", "facebookresearch/xformers/issues/761"),
)
def attention_over_the_heads(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), **options).transpose(1, 2)


@breaks("relations.permute-heads", step="score", holds=("relations.permute-keys", "shapes.output")).entry(
    does="Scales the scores of a head by its number.",
    repair="Use one scale for all heads.",
    hides="A single head.",
    matters="A slope for each head that belongs to a bias of position has got into the scale.",
)
def scale_by_number_of_the_head(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by) * (1.0 + 0.1 * torch.arange(query.shape[1])[:, None, None])


@breaks_layer("heads.split", holds=("projections.output-bias", "shapes.output"), severity=LEAK).entry(
    does="Splits (B, L, H d) into (B, H, L, d) by a view, without moving an axis.",
    repair="View as (B, L, H, d), then exchange the second and third axis.",
    hides="A single head, a single token, checks of shapes, and training: the model makes up for it.",
    matters="Tokens are cut across heads, and a causal flag no longer orders them.",
    links=github("reczoo/FuxiCTR/issues/30", "649453932/Chinese-Text-Classification-Pytorch/issues/53"),
)
class SplitInOneStep(Layer):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], self.num_heads, x.shape[1], -1)


@breaks_layer("heads.split", holds=("projections.output-bias", "shapes.output")).entry(
    does="Gives head h every H-th column instead of a block of neighbours.",
    repair="View as (..., H, d), head before component.",
    hides="A single head, and random weights of one's own: such a model trains as well.",
    matters="Loaded checkpoints give wrong answers.",
)
class ColumnsDealtOutInTurn(Layer):
    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.num_heads).permute(0, 3, 1, 2)


@breaks_layer("heads.merge", holds=("projections.output-bias", "shapes.output"), severity=LEAK).entry(
    does="Joins (B, H, L, d) to (B, L, H d) by a view, without moving the head axis back.",
    repair="Exchange the head axis with the tokens, then join the last two axes.",
    hides="A single head, a single token, checks of shapes, and training on copying tasks.",
    matters="Several libraries had it for years, in one of their layouts only.",
    links=github(
        "jsbaan/transformer-from-scratch/pull/6",
        "meta-pytorch/opacus/pull/825",
        "pytorch/pytorch/issues/67651",
        "jadore801120/attention-is-all-you-need-pytorch/issues/7",
    ),
)
class MergeInOneStep(Layer):
    def merge(self, heads: Tensor) -> Tensor:
        return heads.reshape(heads.shape[0], heads.shape[2], -1)


@breaks_layer("heads.merge", holds=("projections.output-bias", "shapes.output")).entry(
    does="Joins the heads component by component, so that the heads alternate in the columns.",
    repair="Put the head axis before the components, then join the two.",
    hides="A single head, and an output matrix of one's own training.",
    matters="The output matrix of a checkpoint meets the wrong columns.",
)
class HeadsShuffledTogether(Layer):
    def merge(self, heads: Tensor) -> Tensor:
        return heads.permute(0, 2, 3, 1).flatten(2)


@breaks_layer("heads.merge", holds=("projections.output-bias", "shapes.output")).entry(
    does="Joins the heads in the reverse order.",
    repair="Put head h into the columns h d_v to (h + 1) d_v - 1.",
    hides="A single head, and an output matrix of one's own training.",
)
class HeadsJoinedBackwards(Layer):
    def merge(self, heads: Tensor) -> Tensor:
        return heads.flip(1).transpose(1, 2).flatten(2)


@breaks_layer(
    "relations.batch",
    "softmax.over-keys",
    holds=("errors.mask-shape", "errors.key-value-length"),
    severity=LEAK,
    raises=True,
).entry(
    does="Attends over the samples of a batch, because (B, L, width) is read as (L, B, width).",
    repair="State which layout comes in, and transpose where the module's is another.",
    hides="Checks of shapes; samples that are alike.",
    matters="Published models were trained so: a sample's answer depends on the others, and on none of its tokens.",
    links=github("om-ai-lab/OmDet/issues/19", "aipixel/AEMatter/issues/3"),
)
class SamplesTakenForTokens(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        rotated = (x.transpose(0, 1) for x in (query, key, value))
        answer: Tensor = super().forward(*rotated, **options)
        return answer.transpose(0, 1)
