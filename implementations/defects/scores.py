"""Mistakes of chapters 1 to 4: scores, softmax, values and heads of an op."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from implementations.defects.record import breaks
from implementations.defects.steps import INFINITY, Steps, factor, score, softmax
from spec.features import Feature

TILE = 4


@breaks("scores.scale-default", "scores.scale-explicit", "softmax.rows-sum-to-one", holds=("shapes.output",))
def scale_after_softmax(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **masks: Any) -> Tensor:
    return Steps()(query, key, value, scale=1.0, **masks) * factor(query, scale)


@breaks("scores.scale-default", "scores.unit-variance", step="factor", holds=("scores.scale-explicit",))
def no_scale(query: Tensor, scale: float | None) -> float:
    return 1.0 if scale is None else scale


@breaks("scores.scale-default", step="factor", holds=("scores.scale-explicit",))
def scale_of_all_heads(query: Tensor, scale: float | None) -> float:
    return float((query.shape[1] * query.shape[-1]) ** -0.5) if scale is None else scale


@breaks("scores.scale-explicit", step="factor", holds=("scores.scale-default",))
def scale_times_default(query: Tensor, scale: float | None) -> float:
    return factor(query, None) * factor(query[..., :1], scale)


@breaks("scores.scale-zero", step="factor", holds=("scores.scale-explicit", "scores.scale-negative"))
def scale_zero_as_absent(query: Tensor, scale: float | None) -> float:
    return factor(query, scale or None)


@breaks("scores.scale-negative", step="score", holds=("scores.scale-explicit", "scores.scale-zero"))
def root_of_scale_without_sign(query: Tensor, key: Tensor, by: float) -> Tensor:
    root = abs(by) ** 0.5
    return score(query * root, key * root, 1.0)


@breaks("scores.dot-product", "relations.shift-keys", step="score", holds=("relations.permute-keys",))
def cosine(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(F.normalize(query, dim=-1), F.normalize(key, dim=-1), by)


@breaks("scores.bias-after-scale", holds=("masks.bool", "masks.neutral"))
def mask_before_scale(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype is not torch.bool:
        options["attn_mask"] = mask * factor(query, options.get("scale"))
    return Steps()(query, key, value, **options)


@breaks("softmax.over-keys", step="softmax", holds=("shapes.output",))
def softmax_over_queries(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -2)


@breaks("softmax.large-scores", step="softmax", holds=("scores.dot-product", "softmax.weights"))
def no_maximum(scores: Tensor) -> Tensor:
    e = scores.exp()
    return e / e.sum(-1, keepdim=True)


@breaks("softmax.row-maximum", step="softmax", holds=("softmax.large-scores", "scores.dot-product"))
def maximum_of_everything(scores: Tensor) -> Tensor:
    e = (scores - scores.max()).exp()
    return e / e.sum(-1, keepdim=True)


@breaks("softmax.very-negative", step="softmax", holds=("softmax.row-maximum", "softmax.large-scores"))
def maximum_starts_at_a_finite_number(scores: Tensor) -> Tensor:
    e = (scores - scores.amax(-1, keepdim=True).clamp(min=-1e4)).exp()
    return e / e.sum(-1, keepdim=True)


@breaks("softmax.late-maximum", "relations.permute-keys", step="softmax")
def sums_not_rescaled(scores: Tensor) -> Tensor:
    """Each tile of keys has its own maximum; what was summed before is kept as it is."""
    tops = [tile.amax(-1, keepdim=True).expand_as(tile) for tile in scores.split(TILE, -1)]
    e = (scores - torch.cat(tops, -1)).exp()
    return e / e.sum(-1, keepdim=True)


@breaks("softmax.first-tile-masked", step="softmax", holds=("softmax.late-maximum", "scores.dot-product"))
def masked_tile_spoils_the_rest(scores: Tensor) -> Tensor:
    """Its running maximum is minus infinity, and infinity minus infinity is NaN."""
    spoilt = (scores[..., :TILE] == -INFINITY).all(-1, keepdim=True)
    return torch.where(spoilt, torch.nan, softmax(scores))


@breaks("softmax.rows-sum-to-one", "values.single-key", step="softmax", holds=("relations.permute-keys",))
def one_more_in_the_sum(scores: Tensor) -> Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / (e.sum(-1, keepdim=True) + 1.0)


@breaks("relations.convex-hull", "softmax.rows-sum-to-one", step="softmax")
def dropout_scaling_without_dropout(scores: Tensor) -> Tensor:
    return softmax(scores) / 0.8


@breaks("softmax.weights", "masks.zero-weight", extras=("weights",), holds=("masks.bool",))
def weights_before_masks(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    plain = Steps().answer(query, key, value, scale=options.get("scale"))
    return Steps()(query, key, value, **options), plain[1]


@breaks("softmax.averaged-weights", extras=("averaged_weights",), holds=("scores.dot-product",))
def weights_of_the_first_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, weights[:, 0]


@breaks("softmax.log-sum-exp", "relations.merge", step="log_sum_exp", holds=("softmax.weights",))
def logarithm_of_base_two(scores: Tensor) -> Tensor:
    return torch.logsumexp(scores, -1) * 1.4426950408889634


@breaks("values.weighted-sum", "cross-attention.key-value", without={Feature.VALUE_WIDTH})
def keys_summed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, key, **options)


@breaks("values.width", "shapes.output")
def output_as_wide_as_a_key(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return F.pad(Steps()(query, key, value, **options), (0, key.shape[-1] - value.shape[-1]))


@breaks("relations.linear-values", step="mix", holds=("relations.permute-keys", "relations.shift-keys"))
def values_clamped(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ value.clamp(-2.0, 2.0)


@breaks("heads.independent", step="softmax")
def softmax_over_heads_too(scores: Tensor) -> Tensor:
    joined = softmax(scores.transpose(1, 2).flatten(2))
    return joined.view(scores.transpose(1, 2).shape).transpose(1, 2)


@breaks("relations.permute-heads", step="score")
def scale_by_number_of_the_head(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by) * (1.0 + 0.1 * torch.arange(query.shape[1])[:, None, None])


@breaks("relations.permute-keys", step="score")
def score_falls_with_position(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by) - 0.01 * torch.arange(key.shape[-2])


@breaks("relations.permute-queries", step="score", holds=("relations.permute-keys",))
def scale_by_number_of_the_query(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by) / (1.0 + 0.01 * torch.arange(query.shape[-2])[:, None])


@breaks("relations.batch", step="mix", holds=("relations.permute-keys", "relations.permute-heads"))
def values_of_other_samples(weights: Tensor, value: Tensor) -> Tensor:
    return weights @ (value + 0.001 * value.mean(0))
