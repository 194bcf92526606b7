"""Mistakes of chapters 9 and 10: shapes and numerics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from implementations.defects.record import breaks
from implementations.defects.steps import Steps, mix, score, softmax


@breaks("shapes.output")
def output_in_float32(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options).float()


@breaks("shapes.coincident", holds=("masks.bool",))
def mask_axes_swapped_where_they_fit(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 4 and query.shape[0] == query.shape[1] == 2:
        options["attn_mask"] = mask.transpose(0, 1)
    return Steps()(query, key, value, **options)


@breaks("shapes.tile-edges", holds=("scores.dot-product", "shapes.coincident"))
def last_tile_forgotten(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    length = key.shape[-2]
    whole = length - length % 16 if length > 16 and "attn_mask" not in options else length
    return Steps()(query, key[..., :whole, :], value[..., :whole, :], **options)


@breaks("shapes.large", holds=("shapes.tile-edges", "shapes.combinations", "masks.float"))
def float_mask_dropped_over_many_keys(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype is not torch.bool and key.shape[-2] > 256:
        options.pop("attn_mask")
    return Steps()(query, key, value, **options)


@breaks("shapes.head-width", step="factor", holds=("scores.dot-product", "scores.scale-explicit"))
def scale_of_the_padded_width(query: Tensor, scale: float | None) -> float:
    width = query.shape[-1]
    return float((width + -width % 8 if width > 64 else width) ** -0.5) if scale is None else scale


@breaks("shapes.combinations", holds=("scores.scale-explicit", "causal.square"))
def scale_dropped_beside_flag(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "is_causal" in options:
        options.pop("scale", None)
    return Steps()(query, key, value, **options)


@breaks("shapes.views", raises=True, holds=("scores.dot-product",))
def memory_read_as_contiguous(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def flat(x: Tensor) -> Tensor:
        return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride())

    return Steps()(flat(query), flat(key), flat(value), **options)


@breaks("shapes.empty", raises=True, holds=("shapes.output",))
def nothing_is_no_shape(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options).reshape(query.shape[0], -1, *query.shape[2:3], value.shape[-1])


@breaks("shapes.empty-keys", step="mix", holds=("shapes.empty", "values.weighted-sum"))
def mean_of_nothing(weights: Tensor, value: Tensor) -> Tensor:
    return mix(weights, value) * (value.shape[-2] / torch.tensor(value.shape[-2]))


@breaks("cross-attention.lengths", raises=True, holds=("causal.square",))
def as_many_queries_as_keys(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    rows = torch.arange(query.shape[-2]) % key.shape[-2]
    return Steps()(query[..., rows, :], key, value, **options)


@breaks("cross-attention.single-query", holds=("cross-attention.lengths",))
def single_query_sees_the_last_key(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    return value[..., -1:, :] if query.shape[-2] == 1 and "attn_mask" not in options else output


@breaks("numerics.working-precision", "numerics.bound", step="softmax", holds=("numerics.exact",))
def softmax_in_float32(scores: Tensor) -> Tensor:
    return softmax(scores.float()).to(scores.dtype)


@breaks("numerics.working-precision", "numerics.exact", step="softmax")
def epsilon_in_the_denominator(scores: Tensor) -> Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / (e.sum(-1, keepdim=True) + 1e-6)


@breaks("numerics.spread", step="score", holds=("scores.dot-product",))
def scores_clamped(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by).clamp(-20.0, 20.0)


@breaks("numerics.accumulation", dtype="float16", step="softmax", holds=("scores.dot-product",))
def sum_kept_in_half(scores: Tensor) -> Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp().half()
    whole = torch.zeros_like(e[..., :1])
    for term in e.split(1, -1):
        whole = whole + term
    return (e / whole).float()


@breaks("numerics.half-range", dtype="float16", step="score", holds=("scores.dot-product",))
def products_in_half(query: Tensor, key: Tensor, by: float) -> Tensor:
    return (query.half() @ key.half().transpose(-1, -2)).float() * by


@breaks("numerics.nan-propagates", step="mix", holds=("values.weighted-sum",))
def nan_made_a_number(weights: Tensor, value: Tensor) -> Tensor:
    return torch.nan_to_num(weights @ value)
