"""Mistakes of chapter 8: the causal flag, alone and together with masks."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import BOTTOM_RIGHT, INFINITY, Steps
from attention_conformance.implementations.defects.breaking import LEAK, NAN, breaks, omitting
from attention_conformance.spec.conventions import Alignment, CausalWithMask, Conventions, EmptyRow

MASK_ALONE, FLAG_ALONE = (
    Conventions(causal_with_mask=which) for which in (CausalWithMask.MASK_ALONE, CausalWithMask.FLAG_ALONE)
)
REAL = Conventions(causal_alignment=Alignment.BOTTOM_RIGHT_REAL)
breaks_causal = partial(breaks, step="add_causal")
breaks_alignment = partial(
    breaks_causal, "causal.alignment", "causal.empty-rows", holds=("causal.square", "causal.with-padding")
)


@breaks_causal("causal.square", holds=("masks.bool", "scores.dot-product"))
def own_position_hidden(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores).triu().bool(), -INFINITY)


@breaks_causal("causal.square", "causal.no-future", holds=("masks.bool", "scores.dot-product"), severity=LEAK)
def next_position_seen(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores).triu(2).bool(), -INFINITY)


@breaks_causal("causal.square", "causal.no-future", holds=("masks.bool", "scores.dot-product"), severity=LEAK)
def past_hidden_for_future(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores).tril(-1).bool(), -INFINITY)


@breaks("causal.square", "causal.no-future", holds=("causal.with-mask", "causal.with-padding"), severity=LEAK)
def flag_applied_with_a_mask_only(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not options.keys() & {"attn_mask", "key_padding_mask"}:
        options.pop("is_causal", None)
    return Steps()(query, key, value, **options)


@breaks("softmax.over-keys", "relations.permute-keys", holds=("causal.square", "masks.bool", "masks.key-padding"))
def causal_by_default(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    masked = options.keys() & {"attn_mask", "key_padding_mask"}
    return Steps()(query, key, value, **{"is_causal": not masked, **options})


@breaks_alignment(follows="causal-alignment=bottom-right")
def triangle_from_the_other_corner(scores: Tensor) -> Tensor:
    return correct.add_bottom_right(scores)


@breaks_alignment(conventions=BOTTOM_RIGHT)
def offset_of_the_triangle_missing(scores: Tensor) -> Tensor:
    return correct.add_causal(scores)


@breaks_causal(
    "causal.with-padding",
    conventions=REAL,
    holds=("causal.square", "causal.alignment", "masks.key-padding"),
    severity=LEAK,
    follows="causal-alignment=bottom-right",
)
def padding_part_of_the_real_length(scores: Tensor) -> Tensor:
    return correct.add_bottom_right(scores)


@breaks_causal("causal.alignment", conventions=BOTTOM_RIGHT, holds=("causal.square", "causal.empty-rows"))
def tiles_skipped_from_the_other_corner(scores: Tensor) -> Tensor:
    first_keys, last_queries = (torch.arange(n) // 4 * 4 for n in (scores.shape[-1], scores.shape[-2]))
    skipped = first_keys > last_queries[:, None] + 3
    return correct.add_bottom_right(scores).masked_fill(skipped, -INFINITY)


@breaks_causal("causal.alignment", holds=("causal.square", "causal.empty-rows"))
def flag_dropped_for_a_single_query(scores: Tensor) -> Tensor:
    return scores if scores.shape[-2] == 1 else correct.add_causal(scores)


@breaks("causal.any-scale", holds=("causal.square", "scores.scale-explicit"), severity=NAN)
def future_masked_before_scale(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not options.pop("is_causal", False):
        return Steps()(query, key, value, **options)
    steps = Steps(score=lambda query, key, by: correct.add_causal(correct.score(query, key, 1.0)) * by)
    return steps(query, key, value, **options)


@breaks_causal("causal.any-scores", holds=("causal.square", "masks.fill-value"), severity=LEAK)
def future_filled_with_a_number(scores: Tensor) -> Tensor:
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -1e4)


@breaks("causal.any-scores", holds=("causal.square", "causal.no-future"), severity=NAN)
def future_cut_after_the_exponentials(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def cut(scores: Tensor) -> Tensor:
        e = (scores - scores.amax(-1, keepdim=True)).exp().tril()
        return e / e.sum(-1, keepdim=True)

    return (Steps(softmax=cut) if options.pop("is_causal", False) else Steps())(query, key, value, **options)


@breaks("relations.causal-prefix", "causal.no-future", holds=("scores.dot-product", "masks.bool"), severity=LEAK)
def future_cut_after_softmax(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    cut = Steps(softmax=lambda scores: correct.softmax(scores).tril())
    return (cut if options.pop("is_causal", False) else Steps())(query, key, value, **options)


@breaks("relations.causal-prefix", "causal.no-future", holds=("scores.dot-product", "relations.batch"), severity=LEAK)
def values_centred_over_the_sequence(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def centred(weights: Tensor, value: Tensor) -> Tensor:
        return correct.mix(weights, value - 0.1 * value.mean(-2, keepdim=True))

    return (Steps(mix=centred) if options.get("is_causal") else Steps())(query, key, value, **options)


@breaks("causal.padded-start", holds=("causal.with-padding", "masks.key-padding"), severity=LEAK)
def padding_taken_for_lengths(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    padding = options.get("key_padding_mask")
    if padding is not None and "is_causal" in options:
        options["key_padding_mask"] = torch.arange(key.shape[-2]) < padding.sum(-1, keepdim=True)
    return Steps()(query, key, value, **options)


@breaks("causal.with-mask", "shapes.combinations", holds=("causal.square", "causal.with-padding"), severity=LEAK)
def flag_dropped_with_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("is_causal", options, "attn_mask"))


@breaks("causal.with-mask", "shapes.combinations", holds=("causal.square", "causal.with-padding"), severity=LEAK)
def mask_dropped_with_flag(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("attn_mask", options, "is_causal"))


@breaks("causal.with-mask", conventions=MASK_ALONE, holds=("causal.square", "masks.bool", "causal.with-padding"))
def mask_and_flag_together(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options)


@breaks("causal.with-mask", conventions=FLAG_ALONE, holds=("causal.square", "masks.float", "causal.with-padding"))
def float_masks_added_to_a_flag_alone(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    added = mask is not None and mask.dtype is not torch.bool
    return Steps()(query, key, value, **(options if added else omitting("attn_mask", options, "is_causal")))


@breaks("causal.with-mask", holds=("causal.square", "masks.float", "causal.with-padding"))
def float_mask_dropped_with_flag(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "is_causal" in options and options.get("attn_mask", query).dtype is not torch.bool:
        options.pop("attn_mask", None)
    return Steps()(query, key, value, **options)


@breaks("causal.with-padding", holds=("causal.square", "causal.with-mask"), severity=LEAK)
def padding_dropped_with_flag(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("key_padding_mask", options, "is_causal"))


@breaks("causal.empty-row-with-mask", holds=("causal.square", "causal.with-mask", "masks.empty-row-bool"), severity=NAN)
def rows_emptied_together_forgotten(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    right = Steps()(query, key, value, **options)
    mask = options.get("attn_mask")
    if mask is None or "is_causal" not in options:
        return right
    visible = mask if mask.dtype is torch.bool else mask > -INFINITY
    raw = Steps(softmax=lambda scores: torch.softmax(scores, -1))(query, key, value, **options)
    return torch.where(visible.any(-1, keepdim=True), raw, right)


@breaks_causal(
    "causal.emptied-no-future",
    holds=("causal.with-mask", "causal.empty-rows", "causal.no-future", "masks.empty-row-bool"),
    severity=LEAK,
    conventions=Conventions(empty_row_causal=EmptyRow.UNIFORM),
)
def later_keys_filled_with_a_finite_number(scores: Tensor) -> Tensor:
    later = torch.ones_like(scores).triu(1).bool()
    return scores.masked_fill(later, -1e30)
