"""Mistakes of chapter 9: extents, layouts, tiles, and options together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import (
    INFINITY,
    Steps,
    add_causal,
    add_mask,
    mix,
    softmax,
)
from attention_conformance.implementations.defects.breaking import CRASH, LEAK, NAN, breaks, github


def flat(x: Tensor) -> Tensor:
    """The memory of a tensor, read as if it were contiguous."""
    return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride())


@breaks("shapes.output", holds=("effects.repeatable",), severity=CRASH).entry(
    does="Returns float32 whatever the inputs are.",
    repair="Cast the output to the dtype of the inputs.",
    hides="Inputs in float32.",
)
def output_in_float32(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options).float()


@breaks("shapes.output", holds=("effects.repeatable", "effects.fresh-output")).entry(
    does="Returns (B, Lq, H, d_v), with the tokens before the heads.",
    repair="Return the layout in which the inputs came.",
    hides="A single head, or as many heads as queries.",
)
def tokens_before_heads(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options).transpose(1, 2)


@breaks("shapes.coincident", holds=("masks.bool", "scores.dot-product"), severity=LEAK).entry(
    does="Exchanges samples and heads of a mask when there are two of each.",
    repair="Identify axes by their order, never by their extent.",
    hides="Different numbers of samples and heads.",
    matters="Code that guesses the layout from extents fails for the one batch size where both fit.",
)
def mask_axes_swapped_where_they_fit(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim == 4 and query.shape[0] == query.shape[1] == 2:
        options["attn_mask"] = mask.transpose(0, 1)
    return Steps()(query, key, value, **options)


@breaks(
    "shapes.coincident", step="mix", holds=("values.weighted-sum", "shapes.output", "cross-attention.lengths")
).entry(
    does="Multiplies the values by the transpose of the weights wherever that fits.",
    repair="Sum over the keys: weights (Lq, Lk) times values (Lk, d_v).",
    hides="Different numbers of queries and keys; symmetric weights.",
    matters="Code with tokens as columns and code with tokens as rows are mixed: only self-attention runs, wrongly.",
)
def weights_transposed_where_square(weights: Tensor, value: Tensor) -> Tensor:
    return mix(weights.mT if weights.shape[-1] == weights.shape[-2] else weights, value)


@breaks("shapes.tile-edges", holds=("scores.dot-product", "shapes.coincident")).entry(
    does="Leaves out the keys of an unfinished last tile.",
    repair="Round the number of tiles up, and mask what lies beyond the end.",
    hides="Lengths that are multiples of the tile, as powers of two are.",
    links=github("jax-ml/jax/issues/27224", "FluxML/NNkernels.jl/pull/16"),
)
def last_tile_forgotten(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    length = key.shape[-2]
    whole = length - length % 16 if length > 16 and "attn_mask" not in options else length
    return Steps()(query, key[..., :whole, :], value[..., :whole, :], **options)


@breaks("shapes.tile-edges", step="mix", holds=("scores.dot-product", "cross-attention.lengths")).entry(
    does="Never writes the rows of an unfinished last tile of queries.",
    repair="Launch as many tiles as the length divided by the tile, rounded up.",
    hides="Lengths that are multiples of the tile, as powers of two are.",
    links=github("OpenNLPLab/lightning-attention/pull/28", "zml/zml/pull/563"),
)
def last_rows_unwritten(weights: Tensor, value: Tensor) -> Tensor:
    length = weights.shape[-2]
    written = torch.arange(length) < (length - length % 16 if length > 16 else length)
    return mix(weights, value) * written[:, None]


@breaks("shapes.tile-edges", step="softmax", holds=("scores.dot-product", "shapes.coincident")).entry(
    does="Fills the last tile of keys up with zeros, and lets them take part in the sum.",
    repair="Give what lies beyond the end the score minus infinity.",
    hides="Lengths that are multiples of the tile; scores far above 0.",
)
def tile_filled_up_with_zeros(scores: Tensor) -> Tensor:
    length = scores.shape[-1]
    beyond = -length % 16 if length > 16 else 0
    return softmax(torch.nn.functional.pad(scores, (0, beyond)))[..., :length]


@breaks("shapes.tile-edges", step="add_mask", holds=("masks.bool", "masks.segments")).entry(
    does="Skips a tile of keys for 16 queries when the first of them sees none of it.",
    repair="Skip a tile only if no query of it sees a key of it.",
    hides="Fewer than 16 keys; masks that are alike for neighbouring queries.",
    matters="Sparse kernels lose keys at the borders of blocks.",
)
def tile_skipped_by_its_first_row(scores: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool or scores.shape[-1] <= 16:
        return add_mask(scores, mask)
    kept = mask.expand(scores.shape).clone()
    for rows in kept.split(16, -2):
        for tile in rows.split(16, -1):
            tile &= tile[..., :1, :].any(-1, keepdim=True)
    return scores.masked_fill(~kept, -INFINITY)


@breaks("shapes.large", holds=("shapes.tile-edges", "shapes.combinations", "masks.float")).entry(
    does="Drops a float mask over more than 256 keys.",
    repair="Pass every option to the path for long sequences, too.",
    hides="Short sequences.",
)
def float_mask_dropped_over_many_keys(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype is not torch.bool and key.shape[-2] > 256:
        options.pop("attn_mask")
    return Steps()(query, key, value, **options)


@breaks("shapes.large", step="add_causal", holds=("causal.square", "shapes.tile-edges"), severity=LEAK).entry(
    does="Leaves the future visible for queries after the 260th.",
    repair="Build the triangle for the length at hand, not once for a longest one.",
    hides="Sequences up to the length that was thought the longest.",
    matters="A buffer that holds the triangle ends, and long sequences see what lies behind it.",
)
def triangle_of_a_fixed_length(scores: Tensor) -> Tensor:
    late = torch.arange(scores.shape[-2])[:, None] >= 260
    return torch.where(late, scores, add_causal(scores))


@breaks("shapes.large", holds=("shapes.combinations", "heads.independent", "shapes.coincident")).entry(
    does="Keeps the number of a head in four bits, so that head 16 reads the keys of head 0.",
    repair="Compute offsets in an integer that holds the largest one.",
    hides="Up to 16 heads.",
    matters="Offsets overflow at sizes that no test has, and point to memory that is there.",
    links=github("ml-explore/mlx/issues/2894", "Dao-AILab/flash-attention/pull/1500", "pytorch/pytorch/issues/162588"),
)
def number_of_the_head_overflows(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key[:, torch.arange(key.shape[1]) % 16], value, **options)


@breaks("shapes.head-width", step="factor", holds=("scores.dot-product", "scores.scale-explicit")).entry(
    does="Takes the width rounded up to a multiple of 8 for the scale.",
    repair="Compute the scale before the width is padded.",
    hides="Widths that are multiples of 8.",
    matters="Unusual widths are padded for the machine's sake, and attend too flatly.",
)
def scale_of_the_padded_width(query: Tensor, scale: float | None) -> float:
    width = query.shape[-1]
    return float((width + -width % 8 if width > 64 else width) ** -0.5) if scale is None else scale


@breaks("shapes.head-width", holds=("scores.dot-product", "shapes.output")).entry(
    does="Reads two components at a time, and leaves out the last of an odd width above 4.",
    repair="Add the remainder after the loop over pairs.",
    hides="Even widths.",
)
def last_component_of_an_odd_width_lost(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    width = query.shape[-1]
    read = torch.arange(width) < (width - width % 2 if width > 5 else width)
    return Steps()(query * read, key, value, **options)


@breaks("shapes.combinations", holds=("scores.scale-explicit", "causal.square")).entry(
    does="Drops the given scale of a causal call.",
    repair="Pass every option to every path.",
    hides="Either option alone.",
    matters="Decoders with a scale of their own, which each test of one option passes.",
)
def scale_dropped_with_flag(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "is_causal" in options:
        options.pop("scale", None)
    return Steps()(query, key, value, **options)


@breaks("shapes.views", holds=("scores.dot-product",), raises=True).entry(
    does="Reads query, key and value as if they were contiguous.",
    repair="Respect the strides, or copy first.",
    hides="Contiguous inputs; wrappers that happen to copy.",
    matters="The heads of a module are transposed views: accuracy fell from 0.98 to 0.48 on one device.",
    links=github("pytorch/pytorch/issues/181133", "PriorLabs/TabPFN/pull/888", "pytorch/pytorch/issues/163597"),
)
def memory_read_as_contiguous(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(flat(query), flat(key), flat(value), **options)


@breaks("shapes.views", holds=("scores.dot-product", "masks.bool"), raises=True).entry(
    does="Reads the values by the strides of the keys.",
    repair="Pass the strides of each input.",
    hides="Keys and values that lie alike in memory, as those of one fused projection do.",
)
def values_read_by_the_strides_of_the_keys(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if key.shape == value.shape:
        value = value.as_strided(value.shape, key.stride())
    return Steps()(query, key, value, **options)


@breaks("shapes.views", step="add_mask", holds=("masks.bool", "masks.broadcast"), severity=LEAK, raises=True).entry(
    does="Reads a mask as if it were contiguous.",
    repair="Respect the strides of the mask, those of 0 included, or copy first.",
    hides="Contiguous masks.",
    matters="Masks are slices of longer ones, or expanded: kernels refuse them at best.",
    links=github("pytorch/pytorch/issues/139424", "facebookresearch/xformers/issues/813"),
)
def mask_read_as_contiguous(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, flat(mask))


@breaks("shapes.empty", holds=("shapes.output",), severity=CRASH, raises=True).entry(
    does="Infers an extent by reshaping, which fails where another extent is 0.",
    repair="Name every extent.",
    hides="Sizes above 0.",
    matters="An empty batch, the last of a filtered stream, ends the program.",
    links=github(
        "pytorch/pytorch/pull/174950", "Dao-AILab/flash-attention/issues/1159", "NVIDIA/cudnn-frontend/issues/101"
    ),
)
def nothing_is_no_shape(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options).reshape(query.shape[0], -1, *query.shape[2:3], value.shape[-1])


@breaks("shapes.empty-keys", step="mix", holds=("shapes.empty", "values.weighted-sum"), severity=NAN).entry(
    does="Divides 0 by 0 where there are no keys.",
    repair="Answer zeros where there are no keys.",
    hides="A single key and more.",
    links=github("Dao-AILab/flash-attention/pull/2568"),
)
def mean_of_nothing(weights: Tensor, value: Tensor) -> Tensor:
    return mix(weights, value) * (value.shape[-2] / torch.tensor(value.shape[-2]))


@breaks(
    "shapes.empty-keys", step="softmax", holds=("shapes.empty", "masks.empty-row-bool"), severity=CRASH, raises=True
).entry(
    does="Takes the maximum of no keys, which is an error.",
    repair="Return zeros before the softmax where there are no keys.",
    hides="A single key and more.",
    links=github("pytorch/pytorch/pull/195812"),
)
def maximum_of_nothing(scores: Tensor) -> Tensor:
    return softmax(scores - scores.amax(-1, keepdim=True).clamp(min=0.0))
