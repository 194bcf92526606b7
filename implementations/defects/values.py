"""Mistakes of chapter 3, the sum of the values, and of the relations of chapter 12 that follow from it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, mix, score
from attention_conformance.implementations.defects.breaking import CRASH, LEAK, breaks, github
from attention_conformance.spec.features import Feature


@breaks(
    "values.weighted-sum",
    "cross-attention.key-value",
    without={Feature.VALUE_WIDTH},
    extras=("weights",),
    holds=("masks.zero-weight", "shapes.output"),
).entry(
    does="Sums the keys, and not the values.",
    repair="Multiply the weights by the values.",
    hides="Keys that are the values.",
    matters="Hand-written kernels with the wrong pointer: all shapes fit.",
)
def keys_summed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, key, **options)
    return output, weights


@breaks("values.weighted-sum", "relations.convex-hull", holds=("shapes.output", "relations.permute-keys")).entry(
    does="Adds the query to the output, a residual connection inside the attention.",
    repair="Leave the residual connection to the layer around the attention.",
    hides="Queries of zeros, and checks of differences between two calls with the same queries.",
    matters="A block that adds its input as well counts it twice.",
)
def residual_inside(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options) + F.pad(query, (0, value.shape[-1] - query.shape[-1]))


@breaks("values.width", "shapes.output", holds=("shapes.head-width",), severity=CRASH).entry(
    does="Makes the output as wide as a key.",
    repair="Allocate the output with the width of the values.",
    hides="Values as wide as keys.",
    links=github("lsdefine/attention-is-all-you-need-keras/issues/15", "lucidrains/flash-attention-jax/pull/15"),
)
def output_as_wide_as_a_key(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return F.pad(Steps()(query, key, value, **options), (0, key.shape[-1] - value.shape[-1]))


@breaks("values.width", step="mix", holds=("shapes.output", "scores.dot-product")).entry(
    does="Writes four components of each output row, and leaves the others 0.",
    repair="Loop over the width of the values, and not over that of the keys the kernel was compiled for.",
    hides="Values no wider than the kernel.",
    matters="A kernel of one width is called with wider values; validation with equal widths misses it.",
    links=github("fla-org/flash-linear-attention/issues/632"),
)
def values_beyond_the_kernel_lost(weights: Tensor, value: Tensor) -> Tensor:
    kept = torch.arange(value.shape[-1]) < (4 if value.shape[-1] < 8 else 8)
    return mix(weights, value) * kept


@breaks("relations.linear-values", step="mix", holds=("relations.permute-keys", "relations.shift-keys")).entry(
    does="Clamps the values before it sums them.",
    repair="Leave the values as they are.",
    hides="Values within the limits, as normal ones mostly are.",
    matters="Quantised caches with a range measured on other data cut off outliers.",
)
def values_clamped(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value.clamp(-2.0, 2.0)


@breaks("relations.permute-keys", step="score", holds=("shapes.output", "values.single-key")).entry(
    does="Subtracts a little of the key's position from each score, though no positions are requested.",
    repair="Leave positions to the caller's float mask.",
    hides="Few keys, and tolerances of percents.",
    matters="A bias of position that is switched on by default spoils models trained without one.",
)
def score_falls_with_position(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by) - 0.01 * torch.arange(key.shape[-2])


@breaks("relations.permute-queries", step="score", holds=("relations.permute-keys",)).entry(
    does="Scales the scores of a query by its position.",
    repair="Use one scale for all queries.",
    hides="A single query, or the first ones.",
)
def scale_by_number_of_the_query(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by) / (1.0 + 0.01 * torch.arange(query.shape[-2])[:, None])


@breaks(
    "relations.batch", step="mix", holds=("relations.permute-keys", "relations.permute-heads"), severity=LEAK
).entry(
    does="Adds a little of the other samples' values to each value.",
    repair="Reduce within a sample only.",
    hides="A batch of one, and samples that are alike.",
    matters="The answer to one user depends on who else is in the batch.",
)
def values_of_other_samples(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ (value + 0.001 * value.mean(0))
