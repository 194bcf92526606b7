"""Mistakes of chapter 19: how far a query sees, by itself."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps, add_window
from attention_conformance.implementations.defects.breaking import LEAK, breaks
from attention_conformance.spec.conventions import Conventions, WindowCount
from attention_conformance.spec.features import Feature

WINDOW = frozenset({Feature.WINDOW})
STARTED = WINDOW | {Feature.QUERY_START}
INCLUDING = Conventions(window_count=WindowCount.INCLUDING)
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
