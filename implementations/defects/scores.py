"""Mistakes of chapter 1: the product of query and key, and its scale."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, factor, score
from attention_conformance.implementations.defects.breaking import NAN, breaks, github


@breaks("scores.scale-default", "scores.scale-explicit", "softmax.rows-sum-to-one", holds=("shapes.output",)).entry(
    does="Multiplies the weights by the scale after the softmax, and the scores by nothing.",
    repair="Multiply the scores by the scale before the softmax, and leave its result alone.",
    hides="Heads of width 1; anything that normalises the output afterwards, as a layer norm does.",
    matters="Rows sum to 1/sqrt(d_k) and the softmax saturates: training is slow, and the output too small.",
    links=github("FrancescoSaverioZuppichini/ViT/issues/2"),
)
def scale_after_softmax(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **masks: Any) -> Tensor:
    return Steps()(query, key, value, scale=1.0, **masks) * factor(query, scale)


@breaks("scores.scale-default", "scores.unit-variance", step="factor", holds=("scores.scale-explicit",)).entry(
    does="Leaves the scores unscaled where the caller gives no scale.",
    repair="Multiply the scores by 1/sqrt(d_k) unless the caller gives a scale.",
    hides="Heads of width 1, a single key, and checks of the winning key only.",
    matters="A fallback path gives other answers than the kernel, and training from scratch stalls.",
    links=github("mlc-ai/mlc-llm/pull/3426", "PAIR-code/tiny-transformers/issues/71"),
)
def no_scale(query: Tensor, scale: float | None) -> float:
    return 1.0 if scale is None else scale


@breaks("scores.scale-default", step="factor", holds=("scores.scale-explicit",)).entry(
    does="Takes the width of all heads together for the scale.",
    repair="Take the width of one head, after the split, for 1/sqrt(d_k).",
    hides="A single head.",
    matters="The most frequent mistake of scale: attention is too flat, and checkpoints of others give wrong answers.",
    links=github(
        "lucidrains/vit-pytorch/issues/65",
        "FareedKhan-dev/train-llm-from-scratch/pull/3",
        "omihub777/ViT-CIFAR/pull/11",
    ),
)
def scale_of_all_heads(query: Tensor, scale: float | None) -> float:
    return float((query.shape[1] * query.shape[-1]) ** -0.5) if scale is None else scale


@breaks("scores.scale-default", holds=("scores.scale-explicit", "shapes.output")).entry(
    does="Takes the width of the values for the scale.",
    repair="Take the width of queries and keys for 1/sqrt(d_k).",
    hides="Values as wide as keys, which is nearly every model.",
    links=github("juho-lee/set_transformer/issues/18"),
)
def scale_of_the_values(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **masks: Any) -> Tensor:
    return Steps()(query, key, value, scale=factor(value, scale), **masks)


@breaks("scores.scale-default", step="factor", holds=("scores.scale-explicit",)).entry(
    does="Divides by d_k, without the square root.",
    repair="Divide by the square root of d_k.",
    hides="Heads of width 1.",
    links=github("delzac/cntkx/issues/10"),
)
def scale_without_root(query: Tensor, scale: float | None) -> float:
    return 1.0 / query.shape[-1] if scale is None else scale


@breaks("scores.scale-default", step="factor", holds=("scores.scale-explicit",)).entry(
    does="Multiplies by the square root of d_k where it should divide.",
    repair="Divide by the square root, or multiply by d_k to the power -1/2; not both signs at once.",
    hides="Heads of width 1.",
    matters="Attention collapses onto one key, and the gradients of the others vanish.",
    links=github("esceptico/perceiver-io/issues/9"),
)
def scale_upside_down(query: Tensor, scale: float | None) -> float:
    return math.sqrt(query.shape[-1]) if scale is None else scale


@breaks("scores.scale-default", step="factor", holds=("scores.scale-explicit",)).entry(
    does="Applies the fourth root of the width to the queries, and forgets it on the keys.",
    repair="Where the scale is split for the sake of half types, apply each half once: to queries and to keys.",
    hides="Heads of width 1.",
    matters="Code that copies one half of the split gets too peaked a softmax.",
)
def fourth_root_on_one_side(query: Tensor, scale: float | None) -> float:
    return float(query.shape[-1] ** -0.25) if scale is None else scale


@breaks("scores.scale-default", step="factor", holds=("scores.scale-explicit",)).entry(
    does="Divides the width of one head by the number of heads once more.",
    repair="Take the last axis of the split query as it is: it is the width of one head already.",
    hides="A single head.",
    links=github("pengshuang/Transformer/issues/1"),
)
def width_divided_by_heads_twice(query: Tensor, scale: float | None) -> float:
    return float((query.shape[-1] / query.shape[1]) ** -0.5) if scale is None else scale


@breaks(
    "scores.scale-explicit", "scores.scale-default", step="factor", holds=("values.single-key", "scores.scale-zero")
).entry(
    does="Applies the scale twice: to the queries, and to the scores.",
    repair="Apply the scale in one place, and pass 1 to whatever is called next.",
    hides="A scale of 1 or 0.",
    matters="Code that scales by itself and then calls a kernel that scales too; attention is too flat.",
)
def scale_applied_twice(query: Tensor, scale: float | None) -> float:
    return factor(query, scale) ** 2


@breaks("scores.scale-explicit", step="factor", holds=("scores.scale-default",)).entry(
    does="Multiplies a scale that the caller gives by the default one.",
    repair="Let a given scale replace the default.",
    hides="Calls without a scale, and a scale of 0.",
)
def scale_times_default(query: Tensor, scale: float | None) -> float:
    return factor(query, None) * factor(query[..., :1], scale)


@breaks("scores.scale-explicit", step="factor", holds=("scores.scale-default",)).entry(
    does="Accepts a scale and ignores it.",
    repair="Pass the given scale on to every path that computes scores.",
    hides="Calls without a scale, or with the default one.",
    links=github(
        "tenstorrent/tt-metal/issues/33304", "lucidrains/x-transformers/pull/244", "hao-ai-lab/FastVideo/pull/1457"
    ),
)
def scale_ignored(query: Tensor, scale: float | None) -> float:
    return factor(query, None)


@breaks("scores.scale-explicit", step="factor", holds=("scores.scale-default",), raises=True).entry(
    does="Divides by the scale that the caller gives.",
    repair="Multiply by the given scale; a temperature is its inverse, and another parameter.",
    hides="Calls without a scale, and a scale of 1.",
    matters="Interfaces that mean a temperature and interfaces that mean a factor are taken for each other.",
)
def scale_taken_for_a_temperature(query: Tensor, scale: float | None) -> float:
    return factor(query, None) if scale is None else 1.0 / scale


@breaks("scores.scale-zero", step="factor", holds=("scores.scale-explicit", "scores.scale-negative")).entry(
    does="Takes a scale of 0 for an absent one, as `scale or default` does.",
    repair="Compare with None, and not by truth.",
    hides="Every scale but 0.",
    matters="An ablation that switches attention off by a scale of 0 measures ordinary attention.",
    links=github("SKaiNET-developers/SKaiNET/issues/860"),
)
def scale_zero_as_absent(query: Tensor, scale: float | None) -> float:
    return factor(query, scale or None)


@breaks("scores.scale-negative", step="score", holds=("scores.scale-explicit", "scores.scale-zero")).entry(
    does="Spreads the root of the scale's size over query and key, and loses its sign.",
    repair="Give the sign of the scale to one of the two factors.",
    hides="Positive scales.",
)
def root_of_scale_without_sign(query: Tensor, key: Tensor, by: float) -> Tensor:
    root = abs(by) ** 0.5
    return score(query * root, key * root, 1.0)


@breaks(
    "scores.scale-negative", step="score", holds=("scores.scale-explicit", "scores.scale-zero"), severity=NAN
).entry(
    does="Multiplies query and key by the square root of the scale, which is NaN for a negative one.",
    repair="Multiply one of the two by the scale, or treat its sign apart.",
    hides="Positive scales and 0.",
    matters="A definition of the operator that splits the scale into two roots leaves a negative scale without answer.",
    links=github("onnx/onnx/issues/7865"),
)
def square_root_of_a_negative_scale(query: Tensor, key: Tensor, by: float) -> Tensor:
    root = torch.tensor(by, dtype=query.dtype).sqrt()
    return score(query * root, key * root, 1.0)


@breaks(
    "scores.scale-negative", holds=("scores.scale-explicit", "scores.scale-zero", "softmax.large-scores"), severity=NAN
).entry(
    does="Takes the maximum of the products before they are scaled: under a negative scale that is the minimum.",
    repair="Take the maximum of the scaled scores, or the minimum of the products where the scale is negative.",
    hides="Positive scales; negative ones whose scores lie within 88 of each other, in float64 within 709.",
    matters="Kernels that fold the scale into the exponential overflow to NaN.",
)
def maximum_before_a_negative_scale(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **options: Any
) -> Tensor:
    steps = Steps(softmax=_from_the_least) if factor(query, scale) < 0 else Steps()
    return steps(query, key, value, scale=scale, **options)


def _from_the_least(scores: Tensor) -> Tensor:
    """The softmax, less the least finite score in place of the largest."""
    least = scores.detach().masked_fill(scores == -math.inf, math.inf).amin(-1, keepdim=True)
    powers = (scores - least).exp()
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total == 0, 1.0, total)


@breaks("scores.dot-product", "relations.shift-keys", step="score", holds=("relations.permute-keys",)).entry(
    does="Normalises queries and keys to length 1 before the product.",
    repair="Leave queries and keys as long as they are, unless the caller requests cosine attention.",
    hides="Queries and keys that have length 1 already.",
    matters="Weights of models without such a normalisation give attention that is nearly uniform.",
)
def cosine(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(F.normalize(query, dim=-1), F.normalize(key, dim=-1), by)


@breaks(
    "scores.dot-product", "relations.shift-keys", step="score", holds=("relations.permute-keys", "values.single-key")
).entry(
    does="Scores by the squared distance of query and key, and not by their product.",
    repair="Score by the product; a distance takes half the square of the key's length off it.",
    hides="Keys that all have the same length.",
)
def distance_for_product(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by) - 0.5 * by * key.square().sum(-1)[..., None, :]


@breaks("scores.bias-after-scale", holds=("masks.bool", "masks.neutral")).entry(
    does="Adds a float mask to the scores before they are scaled.",
    repair="Scale the scores first, then add the mask.",
    hides="Masks of 0 and minus infinity, and a scale of 1.",
    matters="Biases of position reach the softmax weakened by sqrt(d_k): -10 becomes -1.25 at width 64.",
    links=github("NVIDIA/TransformerEngine/pull/236", "NVIDIA/OpenSeq2Seq/pull/76", "tenstorrent/tt-metal/pull/56406"),
)
def mask_before_scale(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype is not torch.bool:
        options["attn_mask"] = mask * factor(query, options.get("scale"))
    return Steps()(query, key, value, **options)
