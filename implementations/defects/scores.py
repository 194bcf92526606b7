"""Mistakes of chapter 1: the product of query and key, and its scale."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, factor, score
from attention_conformance.implementations.defects.breaking import NAN, breaks
from attention_conformance.spec.conventions import Conventions, DefaultScale

SCALE_OF_ONE = Conventions(default_scale=DefaultScale.ONE)


@breaks("scores.scale-default", "scores.scale-explicit", "softmax.rows-sum-to-one", holds=("shapes.output",))
def scale_after_softmax(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **masks: Any) -> Tensor:
    return Steps()(query, key, value, scale=1.0, **masks) * factor(query, scale)


@breaks("scores.scale-default", "scores.unit-variance", step="factor", holds=("scores.scale-explicit",))
def no_scale(query: Tensor, scale: float | None) -> float:
    return 1.0 if scale is None else scale


@breaks("scores.scale-default", step="factor", holds=("scores.scale-explicit",))
def scale_of_all_heads(query: Tensor, scale: float | None) -> float:
    return float((query.shape[1] * query.shape[-1]) ** -0.5) if scale is None else scale


@breaks("scores.scale-default", holds=("scores.scale-explicit", "shapes.output"))
def scale_of_the_values(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **masks: Any) -> Tensor:
    return Steps()(query, key, value, scale=factor(value, scale), **masks)


@breaks("scores.scale-default", step="factor", holds=("scores.scale-explicit",))
def scale_without_root(query: Tensor, scale: float | None) -> float:
    return 1.0 / query.shape[-1] if scale is None else scale


@breaks("scores.scale-default", step="factor", holds=("scores.scale-explicit",))
def scale_upside_down(query: Tensor, scale: float | None) -> float:
    return math.sqrt(query.shape[-1]) if scale is None else scale


@breaks("scores.scale-default", step="factor", holds=("scores.scale-explicit",))
def fourth_root_on_one_side(query: Tensor, scale: float | None) -> float:
    return float(query.shape[-1] ** -0.25) if scale is None else scale


@breaks("scores.scale-default", step="factor", holds=("scores.scale-explicit",))
def width_divided_by_heads_twice(query: Tensor, scale: float | None) -> float:
    return float((query.shape[-1] / query.shape[1]) ** -0.5) if scale is None else scale


@breaks(
    "scores.scale-explicit", "scores.scale-default", step="factor", holds=("values.single-key", "scores.scale-zero")
)
def scale_applied_twice(query: Tensor, scale: float | None) -> float:
    return factor(query, scale) ** 2


@breaks("scores.scale-explicit", step="factor", holds=("scores.scale-default",))
def scale_times_default(query: Tensor, scale: float | None) -> float:
    return factor(query, None) * factor(query[..., :1], scale)


@breaks("scores.scale-explicit", step="factor", holds=("scores.scale-default",))
def scale_ignored(query: Tensor, scale: float | None) -> float:
    return factor(query, None)


@breaks("scores.scale-explicit", step="factor", holds=("scores.scale-default",), raises=True)
def scale_taken_for_a_temperature(query: Tensor, scale: float | None) -> float:
    return factor(query, None) if scale is None else 1.0 / scale


@breaks("scores.scale-default", step="factor", conventions=SCALE_OF_ONE, holds=("scores.scale-explicit",))
def root_for_a_claimed_one(query: Tensor, scale: float | None) -> float:
    return factor(query, scale)


@breaks("scores.scale-zero", step="factor", holds=("scores.scale-explicit", "scores.scale-negative"))
def scale_zero_as_absent(query: Tensor, scale: float | None) -> float:
    return factor(query, scale or None)


@breaks("scores.scale-negative", step="score", holds=("scores.scale-explicit", "scores.scale-zero"))
def root_of_scale_without_sign(query: Tensor, key: Tensor, by: float) -> Tensor:
    root = abs(by) ** 0.5
    return score(query * root, key * root, 1.0)


@breaks("scores.scale-negative", step="score", holds=("scores.scale-explicit", "scores.scale-zero"), severity=NAN)
def square_root_of_a_negative_scale(query: Tensor, key: Tensor, by: float) -> Tensor:
    root = torch.tensor(by, dtype=query.dtype).sqrt()
    return score(query * root, key * root, 1.0)


@breaks(
    "scores.scale-negative", holds=("scores.scale-explicit", "scores.scale-zero", "softmax.large-scores"), severity=NAN
)
def maximum_before_a_negative_scale(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    steps = Steps(softmax=_from_the_least) if factor(query, options.get("scale")) < 0 else Steps()
    return steps(query, key, value, **options)


def _from_the_least(scores: Tensor) -> Tensor:
    """The softmax, less the least finite score in place of the largest."""
    least = scores.detach().masked_fill(scores == -math.inf, math.inf).amin(-1, keepdim=True)
    powers = (scores - least).exp()
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total == 0, 1.0, total)


@breaks("scores.dot-product", "relations.shift-keys", step="score", holds=("relations.permute-keys",))
def cosine(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(F.normalize(query, dim=-1), F.normalize(key, dim=-1), by)


@breaks(
    "scores.dot-product", "relations.shift-keys", step="score", holds=("relations.permute-keys", "values.single-key")
)
def distance_for_product(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by) - 0.5 * by * key.square().sum(-1)[..., None, :]


@breaks("scores.bias-after-scale", holds=("masks.bool", "masks.neutral"))
def mask_before_scale(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype is not torch.bool:
        options["attn_mask"] = mask * factor(query, options.get("scale"))
    return Steps()(query, key, value, **options)
