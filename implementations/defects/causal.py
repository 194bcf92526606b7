"""Mistakes of chapter 8: the causal flag, alone and together with masks."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import (
    BOTTOM_RIGHT,
    INFINITY,
    Steps,
    add_bottom_right,
    add_causal,
    mix,
    score,
    softmax,
)
from attention_conformance.implementations.defects.breaking import LEAK, NAN, breaks, github

breaks_causal = partial(breaks, step="add_causal")


@breaks_causal("causal.square", holds=("masks.bool", "scores.dot-product")).entry(
    does="Hides a query's own position.",
    repair="Show keys j <= i, and not j < i.",
    hides="A first row that is patched afterwards.",
    links=github("pytorch/pytorch/issues/143287"),
)
def own_position_hidden(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores).triu().bool(), -INFINITY)


@breaks_causal("causal.square", "causal.no-future", holds=("masks.bool", "scores.dot-product"), severity=LEAK).entry(
    does="Shows each query the next position as well.",
    repair="Hide from the first later key on: triu(1), not triu(2).",
    hides="A loss, which only gets better.",
    matters="The model reads the token that it should predict, and cannot generate.",
)
def next_position_seen(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores).triu(2).bool(), -INFINITY)


@breaks_causal("causal.square", "causal.no-future", holds=("masks.bool", "scores.dot-product"), severity=LEAK).entry(
    does="Hides the past, and shows the future.",
    repair="Keep the lower triangle of (Lq, Lk), or hide the upper one without its diagonal.",
    hides="A single token; checks that half of the weights are 0.",
    matters="The triangles tril and triu are taken for each other, often along with the meaning of True.",
)
def past_hidden_for_future(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores).tril(-1).bool(), -INFINITY)


@breaks("causal.square", "causal.no-future", holds=("causal.with-mask", "causal.with-padding"), severity=LEAK).entry(
    does="Applies the causal flag only where there is a mask to merge it into.",
    repair="Apply the flag whether or not there is a mask.",
    hides="Calls with a mask.",
    links=github("facebookresearch/xformers/issues/103"),
)
def flag_applied_with_a_mask_only(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not options.keys() & {"attn_mask", "key_padding_mask"}:
        options.pop("is_causal", None)
    return Steps()(query, key, value, **options)


@breaks(
    "softmax.over-keys", "relations.permute-keys", holds=("causal.square", "masks.bool", "masks.key-padding")
).entry(
    does="Takes attention for causal when neither flag nor mask is given.",
    repair="Let causality be off unless it is requested.",
    hides="Decoders, and calls with a mask.",
    matters="Encoders and cross-attention lose the second half of what they should read.",
    links=github("huggingface/transformers/issues/48172", "huggingface/transformers/pull/42820"),
)
def causal_by_default(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    masked = options.keys() & {"attn_mask", "key_padding_mask"}
    return Steps()(query, key, value, **{"is_causal": not masked, **options})


@breaks_causal(
    "causal.alignment",
    "causal.empty-rows",
    holds=("causal.square", "causal.with-padding"),
    follows="causal-alignment=bottom-right",
).entry(
    does="Lets the triangle end at the last key, while it claims that it starts at the first.",
    repair="State which corner it is, and build the triangle from that one.",
    hides="As many queries as keys.",
    matters="Kernels of one library disagree, and generation from a cache sees one token or all.",
    links=github(
        "pytorch/pytorch/issues/103082",
        "Dao-AILab/flash-attention/issues/517",
        "microsoft/onnxruntime/issues/29020",
        "ml-explore/mlx/issues/2835",
    ),
)
def triangle_from_the_other_corner(scores: Tensor) -> Tensor:
    return add_bottom_right(scores)


@breaks_causal(
    "causal.alignment", "causal.empty-rows", conventions=BOTTOM_RIGHT, holds=("causal.square", "causal.with-padding")
).entry(
    does="Starts the triangle at the first key, while it claims that it ends at the last.",
    repair="Shift the triangle by Lk - Lq.",
    hides="As many queries as keys, and calls without a cache.",
    links=github("google/flax/issues/5591", "hyprstream/hyprstream/pull/1521", "huggingface/candle/pull/3743"),
)
def offset_of_the_triangle_missing(scores: Tensor) -> Tensor:
    return add_causal(scores)


@breaks_causal("causal.alignment", conventions=BOTTOM_RIGHT, holds=("causal.square", "causal.empty-rows")).entry(
    does="Skips tiles beyond the top-left triangle, and masks by the bottom-right one.",
    repair="Add the offset Lk - Lq to the test that skips tiles, too.",
    hides="As many queries as keys, and sequences within a tile.",
)
def tiles_skipped_from_the_other_corner(scores: Tensor) -> Tensor:
    first_keys, last_queries = (torch.arange(n) // 4 * 4 for n in (scores.shape[-1], scores.shape[-2]))
    skipped = first_keys > last_queries[:, None] + 3
    return add_bottom_right(scores).masked_fill(skipped, -INFINITY)


@breaks_causal("causal.alignment", holds=("causal.square", "causal.empty-rows")).entry(
    does="Drops the causal flag for a single query, while it claims a triangle that starts at the first key.",
    repair="Claim the other corner, or apply the flag to a single query as well.",
    hides="Two queries and more; generation, where it is what one wants.",
)
def flag_dropped_for_a_single_query(scores: Tensor) -> Tensor:
    return scores if scores.shape[-2] == 1 else add_causal(scores)


@breaks("causal.any-scale", holds=("causal.square", "scores.scale-explicit"), severity=NAN).entry(
    does="Hides the future before it multiplies by the scale.",
    repair="Scale first, mask afterwards.",
    hides="Positive scales.",
)
def future_masked_before_scale(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, is_causal: bool = False, **masks: Any
) -> Tensor:
    def scores(query: Tensor, key: Tensor, by: float) -> Tensor:
        return (add_causal(score(query, key, 1.0)) if is_causal else score(query, key, 1.0)) * by

    return Steps(score=scores)(query, key, value, scale=scale, **masks)


@breaks_causal("causal.any-scores", holds=("causal.square", "masks.fill-value"), severity=LEAK).entry(
    does="Sets future scores to -10000.",
    repair="Set future scores to minus infinity.",
    hides="Scores above -10000.",
    links=github("karpathy/minGPT/issues/75"),
)
def future_filled_with_a_number(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -1e4)


@breaks("causal.any-scores", holds=("causal.square", "causal.no-future"), severity=NAN).entry(
    does="Removes the future after the exponentials, and normalises over the rest.",
    repair="Mask the scores before the maximum is taken.",
    hides="Scores that lie close together: there it is exact.",
)
def future_cut_after_the_exponentials(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, **options: Any
) -> Tensor:
    def cut(scores: Tensor) -> Tensor:
        e = (scores - scores.amax(-1, keepdim=True)).exp().tril()
        return e / e.sum(-1, keepdim=True)

    return (Steps(softmax=cut) if is_causal else Steps())(query, key, value, **options)


@breaks("relations.causal-prefix", "causal.no-future", holds=("scores.dot-product", "masks.bool"), severity=LEAK).entry(
    does="Sets the weights of the future to 0 after the softmax, without normalising again.",
    repair="Mask the scores before the softmax.",
    hides="A single token; checks that future weights are 0.",
    matters="Early rows are too small, by the weight of the future: it leaks into them.",
)
def future_cut_after_softmax(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, **options: Any
) -> Tensor:
    steps = Steps(softmax=lambda scores: softmax(scores).tril()) if is_causal else Steps()
    return steps(query, key, value, **options)


@breaks(
    "relations.causal-prefix", "causal.no-future", holds=("scores.dot-product", "relations.batch"), severity=LEAK
).entry(
    does="Subtracts the mean of all values, later ones too, from the values of a causal call.",
    repair="Use nothing of a token before its position is reached: no mean, norm or maximum over the sequence.",
    hides="Calls without the flag; values whose mean is 0.",
    matters="A normalisation along the sequence leaks the future into the past.",
)
def values_centred_over_the_sequence(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, **options: Any
) -> Tensor:
    def centred(weights: Tensor, value: Tensor) -> Tensor:
        return mix(weights, value - 0.1 * value.mean(-2, keepdim=True))

    return (Steps(mix=centred) if is_causal else Steps())(query, key, value, is_causal=is_causal, **options)


@breaks("causal.padded-start", holds=("causal.with-padding", "masks.key-padding"), severity=LEAK).entry(
    does="Counts the real keys under the causal flag, and shows as many from the start.",
    repair="Hide exactly the padded keys.",
    hides="Padding at the end, and calls without the flag.",
    matters="Prompts of a batch that are padded at the start attend to padding, and not to their end.",
)
def padding_taken_for_lengths(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    padding = options.get("key_padding_mask")
    if padding is not None and "is_causal" in options:
        options["key_padding_mask"] = torch.arange(key.shape[-2]) < padding.sum(-1, keepdim=True)
    return Steps()(query, key, value, **options)


@breaks("causal.with-mask", "shapes.combinations", holds=("causal.square", "causal.with-padding"), severity=LEAK).entry(
    does="Drops the causal flag when there is a mask.",
    repair="Let a query see what flag and mask both allow, or refuse the two together.",
    hides="Masks that are causal themselves.",
    links=github("onnx/onnx/pull/8068"),
)
def flag_dropped_with_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "attn_mask" in options:
        options.pop("is_causal", None)
    return Steps()(query, key, value, **options)


@breaks("causal.with-mask", "shapes.combinations", holds=("causal.square", "causal.with-padding"), severity=LEAK).entry(
    does="Drops the mask when the causal flag is set.",
    repair="Let a query see what flag and mask both allow, or refuse the two together.",
    hides="Masks that hide nothing but the future.",
    matters="A module ignored the mask silently: padding and segments were visible.",
    links=github("pytorch/pytorch/pull/178588"),
)
def mask_dropped_with_flag(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "is_causal" in options:
        options.pop("attn_mask", None)
    return Steps()(query, key, value, **options)


@breaks("causal.with-mask", holds=("causal.square", "masks.float", "causal.with-padding")).entry(
    does="Merges a boolean mask into the causal triangle, and drops a float one.",
    repair="Add the float mask, then apply the triangle.",
    hides="Boolean masks; calls without the flag.",
    matters="A fused causal path knows booleans only: biases of position are lost in decoders.",
)
def float_mask_dropped_with_flag(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "is_causal" in options and options.get("attn_mask", query).dtype is not torch.bool:
        options.pop("attn_mask", None)
    return Steps()(query, key, value, **options)


@breaks("causal.with-padding", holds=("causal.square", "causal.with-mask"), severity=LEAK).entry(
    does="Drops the padding mask when the causal flag is set.",
    repair="Leave each query the real keys that are not later than itself.",
    hides="Batches without padding; padding at the end, for readers of real rows only.",
    links=github("AI-Hypercomputer/maxtext/issues/878", "AnswerDotAI/ModernBERT/pull/40"),
)
def padding_dropped_with_flag(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "is_causal" in options:
        options.pop("key_padding_mask", None)
    return Steps()(query, key, value, **options)


@breaks(
    "causal.empty-row-with-mask", holds=("causal.square", "causal.with-mask", "masks.empty-row-bool"), severity=NAN
).entry(
    does="Answers rows that the mask alone leaves without keys, and divides 0 by 0 where mask and flag do it together.",
    repair="Find empty rows after all masks are merged, not in each of them.",
    hides="Masks that leave every query a key which is not later than itself.",
    matters="A prompt that is padded by its mask becomes NaN in a decoder, and right in an encoder.",
)
def rows_emptied_together_forgotten(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    right = Steps()(query, key, value, **options)
    mask = options.get("attn_mask")
    if mask is None or "is_causal" not in options:
        return right
    seen = mask if mask.dtype is torch.bool else mask > -INFINITY
    raw = Steps(softmax=lambda scores: torch.softmax(scores, -1))(query, key, value, **options)
    return torch.where(seen.any(-1, keepdim=True), raw, right)
