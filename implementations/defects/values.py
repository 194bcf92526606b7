"""Mistakes of chapter 3, the sum of the values, and of the relations of chapter 12 that follow from it."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, mix, score
from attention_conformance.implementations.defects.breaking import CRASH, LEAK, breaks
from attention_conformance.spec.features import Feature


@breaks(
    "values.weighted-sum",
    "cross-attention.key-value",
    without={Feature.VALUE_WIDTH},
    extras=("weights",),
    holds=("masks.zero-weight", "shapes.output"),
)
def keys_summed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, key, **options)
    return output, weights


@breaks("values.weighted-sum", "relations.convex-hull", holds=("shapes.output", "relations.permute-keys"))
def residual_inside(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options) + F.pad(query, (0, value.shape[-1] - query.shape[-1]))


@breaks("values.width", "shapes.output", "shapes.head-width", holds=("numerics.nan-propagates",), severity=CRASH)
def output_as_wide_as_a_key(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return F.pad(Steps()(query, key, value, **options), (0, key.shape[-1] - value.shape[-1]))


@breaks("values.width", step="mix", holds=("shapes.output", "scores.dot-product"))
def values_beyond_the_kernel_lost(weights: Tensor, value: Tensor) -> Tensor:
    written = torch.arange(value.shape[-1]) < (4 if value.shape[-1] < 8 else 8)
    return mix(weights, value) * written


@breaks("relations.linear-values", step="mix", holds=("relations.permute-keys", "relations.shift-keys"))
def values_clamped(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value.clamp(-2.0, 2.0)


@breaks("relations.permute-keys", step="score", holds=("shapes.output", "values.single-key"))
def score_falls_with_position(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by) - 0.01 * torch.arange(key.shape[-2])


@breaks("relations.permute-queries", step="score", holds=("relations.permute-keys",))
def scale_by_number_of_the_query(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by) / (1.0 + 0.01 * torch.arange(query.shape[-2])[:, None])


@breaks("relations.batch", step="mix", holds=("relations.permute-keys", "relations.permute-heads"), severity=LEAK)
def values_of_other_samples(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ (value + 0.001 * value.mean(0))
