"""Mistakes of chapter 9: extents, layouts, tiles, and options together."""

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps
from attention_conformance.implementations.defects.breaking import CRASH, LEAK, NAN, breaks, omitting


def flat(x: Tensor) -> Tensor:
    """The memory of a tensor, read as if it were contiguous."""
    return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride())


@breaks("shapes.output", holds=("effects.repeatable",), severity=CRASH)
def output_in_float32(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options).float()


@breaks("shapes.output", holds=("effects.repeatable", "effects.fresh-output"))
def tokens_before_heads(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options).transpose(1, 2)


@breaks("shapes.coincident", holds=("masks.bool", "scores.dot-product"), severity=LEAK)
def mask_axes_swapped_where_they_fit(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 4 and query.shape[0] == query.shape[1] == 2:
        options["attn_mask"] = mask.transpose(0, 1)
    return Steps()(query, key, value, **options)


@breaks("shapes.coincident", step="mix", holds=("values.weighted-sum", "shapes.output", "cross-attention.lengths"))
def weights_transposed_where_square(weights: Tensor, value: Tensor) -> Tensor:
    return correct.mix(weights.mT if weights.shape[-1] == weights.shape[-2] else weights, value)


@breaks("shapes.tile-edges", holds=("scores.dot-product", "shapes.coincident"))
def last_tile_forgotten(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    length = key.shape[-2]
    whole = length - length % 16 if length > 16 and "attn_mask" not in options else length
    return Steps()(query, key[..., :whole, :], value[..., :whole, :], **options)


@breaks("shapes.tile-edges", step="mix", holds=("scores.dot-product", "cross-attention.lengths"))
def last_rows_unwritten(weights: Tensor, value: Tensor) -> Tensor:
    length = weights.shape[-2]
    written = torch.arange(length) < (length - length % 16 if length > 16 else length)
    return correct.mix(weights, value) * written[:, None]


@breaks("shapes.tile-edges", step="softmax", holds=("scores.dot-product", "shapes.coincident"))
def tile_filled_up_with_zeros(scores: Tensor) -> Tensor:
    length = scores.shape[-1]
    beyond = -length % 16 if length > 16 else 0
    return correct.softmax(torch.nn.functional.pad(scores, (0, beyond)))[..., :length]


@breaks("shapes.tile-edges", step="add_mask", holds=("masks.bool", "masks.segments"))
def tile_skipped_by_its_first_row(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool or scores.shape[-1] <= 16:
        return correct.add_mask(scores, mask)
    visible = mask.expand(scores.shape).clone()
    for rows in visible.split(16, -2):
        for tile in rows.split(16, -1):
            tile &= tile[..., :1, :].any(-1, keepdim=True)
    return scores.masked_fill(~visible, -INFINITY)


@breaks("shapes.large", holds=("shapes.tile-edges", "shapes.combinations", "masks.float"))
def float_mask_dropped_over_many_keys(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype is not torch.bool and key.shape[-2] > 256:
        options.pop("attn_mask")
    return Steps()(query, key, value, **options)


@breaks("shapes.large", step="add_causal", holds=("causal.square", "shapes.combinations"), severity=LEAK)
def triangle_of_a_fixed_length(scores: Tensor) -> Tensor:
    late = torch.arange(scores.shape[-2])[:, None] >= 260
    return torch.where(late, scores, correct.add_causal(scores))


@breaks("shapes.large", holds=("heads.independent", "shapes.coincident"))
def number_of_the_head_overflows(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key[:, torch.arange(key.shape[1]) % 16], value, **options)


@breaks("shapes.head-width", step="factor", holds=("scores.dot-product", "scores.scale-explicit"))
def scale_of_the_padded_width(query: Tensor, scale: float | None) -> float:
    width = query.shape[-1]
    return float((width + -width % 8 if width > 64 else width) ** -0.5) if scale is None else scale


@breaks("shapes.head-width", holds=("scores.dot-product", "shapes.output"))
def last_component_of_an_odd_width_lost(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    width = query.shape[-1]
    read = torch.arange(width) < (width - width % 2 if width > 5 else width)
    return Steps()(query * read, key, value, **options)


@breaks("shapes.head-width", holds=("scores.dot-product", "shapes.tile-edges", "shapes.combinations"))
def last_tile_forgotten_in_wide_heads(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    length = key.shape[-2]
    whole = length - length % 64 if query.shape[-1] == 128 and length > 64 and "attn_mask" not in options else length
    return Steps()(query, key[..., :whole, :], value[..., :whole, :], **options)


@breaks("shapes.large", holds=("heads.independent", "shapes.coincident", "shapes.combinations"))
def last_heads_share_a_key(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    heads = torch.arange(key.shape[1])
    return Steps()(
        query, key[:, heads - heads % 4 if len(heads) % 4 == 0 and len(heads) > 4 else heads], value, **options
    )


@breaks("shapes.combinations", holds=("scores.scale-explicit", "causal.square"))
def scale_dropped_with_flag(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("scale", options, "is_causal"))


@breaks("shapes.views", holds=("scores.dot-product",), raises=True)
def memory_read_as_contiguous(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(flat(query), flat(key), flat(value), **options)


@breaks("shapes.views", holds=("scores.dot-product", "masks.bool"), raises=True)
def values_read_by_the_strides_of_the_keys(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if key.shape == value.shape:
        value = value.as_strided(value.shape, key.stride())
    return Steps()(query, key, value, **options)


@breaks("shapes.views", step="add_mask", holds=("masks.bool", "masks.broadcast"), severity=LEAK, raises=True)
def mask_read_as_contiguous(scores: Tensor, mask: Tensor) -> Tensor:
    return correct.add_mask(scores, flat(mask))


@breaks("shapes.empty", holds=("shapes.output",), severity=CRASH, raises=True)
def nothing_is_no_shape(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options).reshape(query.shape[0], -1, *query.shape[2:3], value.shape[-1])


@breaks("shapes.empty-keys", step="mix", holds=("shapes.empty", "values.weighted-sum"), severity=NAN)
def mean_of_nothing(weights: Tensor, value: Tensor) -> Tensor:
    return correct.mix(weights, value) * (value.shape[-2] / torch.tensor(value.shape[-2]))


@breaks(
    "shapes.empty-keys", step="softmax", holds=("shapes.empty", "masks.empty-row-bool"), severity=CRASH, raises=True
)
def maximum_of_nothing(scores: Tensor) -> Tensor:
    return correct.softmax(scores - scores.amax(-1, keepdim=True).clamp(min=0.0))
