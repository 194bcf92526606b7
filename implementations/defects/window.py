"""Mistakes of chapter 19: how far a query sees, by itself, with other options, and in the backward pass."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import BOTTOM_RIGHT, INFINITY, Steps, add_window
from attention_conformance.implementations.defects.breaking import GRADIENT, LEAK, NAN, breaks, omitting
from attention_conformance.spec.conventions import Conventions, PaddedPositions, WindowCount
from attention_conformance.spec.features import Feature

WINDOW = frozenset({Feature.WINDOW})
STARTED = WINDOW | {Feature.QUERY_START}
INCLUDING = Conventions(window_count=WindowCount.INCLUDING)
IF_CAUSAL = Conventions(window_count=WindowCount.INCLUDING_IF_CAUSAL)
SKIPPED = Conventions(padded_positions=PaddedPositions.SKIPPED)
Window = tuple[int, int]
TILE = 16
breaks_window = partial(breaks, claims=WINDOW)
breaks_add_window = partial(breaks_window, step="add_window")
breaks_extent = partial(
    breaks_add_window, "window.extent", "window.narrow", "window.causal", holds=("causal.square", "masks.bool")
)


@breaks_extent()
def own_position_counted(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    cut = scores.masked_fill((ahead <= -left)[:, None], -INFINITY) if left >= 0 else scores
    return add_window(cut, ahead, (-1, right))


@breaks_extent(conventions=INCLUDING)
def own_position_left_out_of_the_count(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    return add_window(scores, ahead, window)


@breaks_add_window("window.extent", "window.outside", holds=("window.causal", "causal.square"), severity=LEAK)
def one_key_too_many_to_the_right(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    return add_window(scores, ahead, (left, right + 1 if right >= 0 else -1))


@breaks_add_window("window.extent", "window.open-side", holds=("causal.square", "masks.bool"), severity=LEAK)
def sides_of_the_window_swapped(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    return add_window(scores, ahead, (window[1], window[0]))


@breaks_add_window("window.open-side", holds=("window.extent", "window.causal"))
def window_made_symmetric(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    return add_window(scores, ahead, (left, left if right < 0 else right))


@breaks_add_window("window.extent", "window.open-side", holds=("window.causal", "causal.square"))
def window_taken_for_causal(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    return add_window(scores.masked_fill((ahead > 0)[:, None], -INFINITY), ahead, window)


@breaks_add_window("window.open-side", "window.causal", holds=("window.extent", "window.narrow"))
def absent_limit_taken_for_an_extent(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    return scores.masked_fill(((ahead < -left) | (ahead > right))[:, None], -INFINITY)


@breaks_add_window("window.narrow", "window.open-side", holds=("window.extent", "window.lengths"), severity=LEAK)
def extent_of_zero_taken_for_none(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    return add_window(scores, ahead, (left or -1, right or -1))


@breaks_add_window("window.extent", "window.outside", holds=("window.narrow", "window.lengths"))
def tile_started_by_its_last_query(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, _ = window
    rows, keys = (torch.arange(n) for n in scores.shape[-2:])
    first = (rows // TILE * TILE + TILE - 1 - left) // TILE * TILE
    skipped = keys < first[:, None] if left >= 0 else torch.tensor(False)
    return add_window(scores.masked_fill(skipped, -INFINITY), ahead, window)


@breaks_add_window(
    "window.extent", "window.outside", "window.narrow", holds=("causal.square", "masks.bool"), severity=LEAK
)
def whole_tiles_seen(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    visible = add_window(torch.zeros_like(scores), ahead, window) == 0
    tiles = torch.nn.functional.pad(visible, (0, -visible.shape[-1] % 4)).unflatten(-1, (-1, 4)).any(-1)
    return scores.masked_fill(~tiles.repeat_interleave(4, -1)[..., : visible.shape[-1]], -INFINITY)


@breaks_add_window("window.extent", "window.narrow", holds=("causal.square", "masks.bool"), severity=LEAK)
def start_of_the_window_wraps(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    length = ahead.shape[-1]
    first = torch.arange(length) - ahead - left
    wrapped = ahead < torch.where(first < 0, first.add(length).clamp(min=0) - first, 0) - left
    return add_window(scores.masked_fill(wrapped[:, None], -INFINITY) if left >= 0 else scores, ahead, (-1, right))


@breaks_window("window.extent", "window.outside", holds=("window.with-mask", "window.with-padding"), severity=LEAK)
def window_applied_with_a_mask_only(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not options.keys() & {"attn_mask", "key_padding_mask"}:
        options.pop("window_size", None)
    return Steps()(query, key, value, **options)


@breaks_add_window("shapes.large", holds=("window.extent", "window.narrow", "window.causal"))
def tile_begins_with_its_last_query(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, length = window[0], scores.shape[-2]
    if left >= 0:
        last = (torch.arange(length) // 64 * 64 + 63).clamp(max=length - 1)
        begins = (last - left).clamp(min=0) // 64 * 64
        scores = scores.masked_fill(torch.arange(scores.shape[-1]) < begins[:, None], -INFINITY)
    return add_window(scores, ahead, window)


def beyond(ahead: Tensor, window: Window) -> Tensor:
    """(B, Lq, Lk), True = outside of the window."""
    return correct.add_window(torch.zeros(len(ahead), 1, *ahead.shape[1:]), ahead, window)[:, 0] < 0


@breaks_window("window.causal", holds=("window.extent", "causal.square"), severity=LEAK)
def flag_dropped_with_window(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("is_causal", options, "window_size"))


@breaks_window("window.causal", holds=("window.extent", "causal.square"))
def window_dropped_with_flag(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if options.get("is_causal"):
        options.pop("window_size", None)
    return Steps()(query, key, value, **options)


@breaks_window("window.causal", holds=("window.extent", "causal.square", "window.with-padding"), severity=LEAK)
def causal_mask_multiplied_by_the_band(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not options.get("is_causal"):
        return Steps()(query, key, value, **options)

    def band(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
        return scores.masked_fill(((ahead > 0) & ~beyond(ahead, window))[:, None], -INFINITY)

    flagged = "window_size" not in options
    return Steps(add_window=band)(query, key, value, **{**options, "is_causal": flagged})


@breaks_window("window.with-mask", holds=("window.extent", "masks.bool", "masks.float-infinity"), severity=NAN)
def mask_multiplied_by_the_band(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is None or "window_size" not in options:
        return Steps()(query, key, value, **options)
    added = torch.zeros(mask.shape).masked_fill(~mask, -INFINITY) if mask.dtype is torch.bool else mask

    def band(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
        return scores + added * ~beyond(ahead, window)[:, None]

    options.pop("attn_mask")
    return Steps(add_window=band)(query, key, value, **options)


@breaks_window("window.with-mask", holds=("window.extent", "masks.bool", "window.with-padding"), severity=LEAK)
def window_dropped_with_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("window_size", options, "attn_mask"))


@breaks_window("window.with-padding", holds=("window.extent", "masks.key-padding", "window.with-mask"), severity=LEAK)
def padding_dropped_with_window(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("key_padding_mask", options, "window_size"))


@breaks_window("window.with-padding", holds=("window.extent", "masks.key-padding", "window.with-mask"))
def padding_left_out_of_positions(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    padding = options.get("key_padding_mask")

    def shifted(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
        before = 0 if padding is None else (~padding).cumsum(-1)[:, None]
        return correct.add_window(scores, ahead - before, window)

    return Steps(add_window=shifted)(query, key, value, **options)


@breaks_window(
    "window.with-padding",
    conventions=SKIPPED,
    holds=("window.extent", "masks.key-padding"),
    follows="padded-positions=counted",
)
def padding_counted_against_the_claim(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options)


@breaks_window(
    "window.causal",
    conventions=IF_CAUSAL,
    holds=("window.extent", "window.narrow", "causal.square"),
    follows="window-count=excluding",
)
def one_count_with_the_flag_and_without(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **options)


@breaks_window("window.lengths", "window.empty-rows", step="add_window", holds=("window.extent", "causal.alignment"))
def window_from_the_other_corner(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    return correct.add_window(scores, ahead - (ahead.shape[-1] - ahead.shape[-2]), window)


@breaks_window(
    "window.lengths", "window.empty-rows", conventions=BOTTOM_RIGHT, holds=("window.extent", "causal.alignment")
)
def window_left_at_the_first_key(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps(add_causal=correct.add_bottom_right)(query, key, value, **options)


@breaks_window("window.lengths", holds=("window.extent", "window.causal"))
def window_dropped_for_a_single_query(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if query.shape[-2] == 1:
        options.pop("window_size", None)
    return Steps()(query, key, value, **options)


@breaks_window("softmax.over-keys", "relations.permute-keys", holds=("window.extent", "window.open-side"))
def window_on_global_layers(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **{"window_size": (2, 2), **options})


@breaks("window.query-start", claims=STARTED, holds=("window.lengths", "window.extent"))
def window_relative_to_the_chunk(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    start = options.get("query_start") or 0
    steps = Steps(add_window=lambda scores, ahead, window: correct.add_window(scores, ahead + start, window))
    return steps(query, key, value, **options)


@breaks_window("window.any-scores", step="add_window", holds=("window.extent", "window.with-mask"), severity=LEAK)
def outside_filled_with_a_number(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    return scores.masked_fill(beyond(ahead, window)[:, None], -1e4)


@breaks_window("window.outside", "window.extent", holds=("causal.square", "masks.bool"), severity=LEAK)
def window_cut_after_softmax(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    window = options.pop("window_size", (-1, -1))

    def cut(scores: Tensor) -> Tensor:
        ahead = torch.arange(key.shape[-2]) - torch.arange(query.shape[-2])[:, None]
        return correct.softmax(scores).masked_fill(beyond(ahead[None], window)[:, None], 0.0)

    return Steps(softmax=cut)(query, key, value, **options)


@breaks_window("window.empty-rows", holds=("window.extent", "window.lengths", "masks.empty-row-bool"), severity=NAN)
def rows_emptied_by_window_forgotten(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    steps = Steps(softmax=lambda scores: torch.softmax(scores, -1)) if "window_size" in options else Steps()
    return steps(query, key, value, **options)


@breaks_window("window.empty-rows", step="add_window", holds=("window.extent", "window.lengths"), severity=LEAK)
def window_moved_to_the_nearest_key(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    outside = beyond(ahead, window)
    nearest = ahead.abs() == ahead.abs().amin(-1, keepdim=True)
    return scores.masked_fill((outside & ~(outside.all(-1, keepdim=True) & nearest))[:, None], -INFINITY)


@breaks_window("window.gradients", holds=("window.extent", "gradients.key", "causal.square"), severity=GRADIENT)
def window_forgotten_in_backward(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    right = Steps()(query, key, value, **options)
    options.pop("window_size", None)
    return differentiated_as(right, Steps()(query, key, value, **options))


@breaks_window("window.gradients", holds=("window.extent", "gradients.key", "causal.square"), severity=GRADIENT)
def window_mirrored_in_backward(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    right = Steps()(query, key, value, **options)
    left_size, right_size = options.get("window_size", (-1, -1))
    mirrored = Steps()(query, key, value, **{**options, "window_size": (right_size, left_size)})
    return differentiated_as(right, mirrored)


def differentiated_as(right: Tensor, other: Tensor) -> Tensor:
    """The numbers of the one with the gradients of the other."""
    return right.detach() + (other - other.detach())
