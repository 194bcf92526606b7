"""Mistakes of chapter 19: how far a query sees, by itself."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps, add_window
from attention_conformance.implementations.defects.breaking import LEAK, breaks, github
from attention_conformance.spec.features import Conventions, Feature, WindowCount

WINDOW = frozenset({Feature.WINDOW})
STARTED = WINDOW | {Feature.QUERY_START}
INCLUDING = Conventions(window_count=WindowCount.INCLUDING)
Window = tuple[int, int]
TILE = 16
breaks_window = partial(breaks, claims=WINDOW)
breaks_add_window = partial(breaks_window, step="add_window")


@breaks_add_window("window.extent", "window.narrow", "window.causal", holds=("causal.square", "masks.bool")).entry(
    does="Counts the query's own position among the l keys to the left, while it claims keys other than it.",
    repair="Hide keys before i - l, or claim the other way to count.",
    hides="Sequences within the window, and configurations without one.",
    matters="Two libraries count differently, and a number passed from one to the other is off by one.",
    links=github(
        "huggingface/transformers/issues/39408",
        "zml/zml/pull/763",
        "lightseekorg/tokenspeed/pull/578",
        "vllm-project/vllm/issues/3385",
    ),
)
def own_position_counted(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    return add_window(
        scores.masked_fill((ahead <= -left)[:, None], -INFINITY) if left >= 0 else scores, ahead, (-1, right)
    )


@breaks_add_window(
    "window.extent", "window.narrow", "window.causal", conventions=INCLUDING, holds=("causal.square", "masks.bool")
).entry(
    does="Counts keys other than the query's own position, while it claims that l includes it.",
    repair="Hide keys before i - l + 1, or claim the other way to count.",
    hides="Sequences within the window, and configurations without one.",
    matters="One key too many for each query: a cache of l keys has lost it, and cached answers differ.",
    links=github("openvinotoolkit/openvino/pull/30714", "mistralai/mistral-inference/issues/60"),
)
def own_position_left_out_of_the_count(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    return add_window(scores, ahead, window)


@breaks_add_window("window.extent", "window.outside", holds=("window.causal", "causal.square"), severity=LEAK).entry(
    does="Shows one key too many to the right.",
    repair="Hide keys after i + r.",
    hides="Calls with the causal flag.",
    matters="A right extent of 0, which stands for causal, shows the next token.",
)
def one_key_too_many_to_the_right(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    return add_window(scores, ahead, (left, right + 1 if right >= 0 else -1))


@breaks_add_window("window.extent", "window.open-side", holds=("causal.square", "masks.bool"), severity=LEAK).entry(
    does="Takes the left extent for the right one, and the right one for the left.",
    repair="Let the first number limit the keys before the query.",
    hides="Symmetric windows.",
)
def sides_of_the_window_swapped(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    return add_window(scores, ahead, (window[1], window[0]))


@breaks_add_window("window.open-side", holds=("window.extent", "window.causal")).entry(
    does="Uses the left extent on both sides where none is given to the right.",
    repair="Leave a side without a limit open.",
    hides="Calls with the causal flag, and windows with both limits.",
    links=github("huggingface/transformers/issues/39408"),
)
def window_made_symmetric(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    return add_window(scores, ahead, (left, left if right < 0 else right))


@breaks_add_window("window.extent", "window.open-side", holds=("window.causal", "causal.square")).entry(
    does="Hides all later keys as soon as there is a window.",
    repair="Let the causal flag alone hide the future.",
    hides="Decoders, which set the flag anyway.",
)
def window_taken_for_causal(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    return add_window(scores.masked_fill((ahead > 0)[:, None], -INFINITY), ahead, window)


@breaks_add_window("window.open-side", "window.causal", holds=("window.extent", "window.narrow")).entry(
    does="Takes -1, which stands for no limit, for an extent of -1.",
    repair="Compare with a limit only where there is one.",
    hides="Windows with limits on both sides.",
    links=github("zml/zml/pull/763"),
)
def absent_limit_taken_for_an_extent(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    return scores.masked_fill(((ahead < -left) | (ahead > right))[:, None], -INFINITY)


@breaks_add_window("window.narrow", "window.open-side", holds=("window.extent", "window.lengths"), severity=LEAK).entry(
    does="Takes an extent of 0 for no limit.",
    repair="Test for the absent value, not for truth.",
    hides="Extents of 1 and more.",
    matters="A test of truth, such as window or length, makes the narrowest window the widest.",
)
def extent_of_zero_taken_for_none(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    return add_window(scores, ahead, (left or -1, right or -1))


@breaks_add_window("window.extent", "window.outside", holds=("window.narrow", "window.lengths")).entry(
    does="Starts each tile of queries at the keys that its last query sees.",
    repair="Let a tile read from the first key of its first query to the last key of its last one.",
    hides="Sequences within a tile.",
    links=github("sgl-project/sglang/pull/39769"),
)
def tile_started_by_its_last_query(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, _ = window
    rows, keys = (torch.arange(n) for n in scores.shape[-2:])
    first = (rows // TILE * TILE + TILE - 1 - left) // TILE * TILE
    skipped = keys < first[:, None] if left >= 0 else torch.tensor(False)
    return add_window(scores.masked_fill(skipped, -INFINITY), ahead, window)


@breaks_add_window(
    "window.extent", "window.outside", "window.narrow", holds=("causal.square", "masks.bool"), severity=LEAK
).entry(
    does="Shows whole tiles of keys, once one of their keys is inside the window.",
    repair="Mask inside the tiles at both edges of the window.",
    hides="Windows and positions that are multiples of the tile.",
    matters="A block mask chooses which tiles are read; it does not replace the mask.",
)
def whole_tiles_seen(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    seen = add_window(torch.zeros_like(scores), ahead, window) == 0
    tiles = torch.nn.functional.pad(seen, (0, -seen.shape[-1] % 4)).unflatten(-1, (-1, 4)).any(-1)
    return scores.masked_fill(~tiles.repeat_interleave(4, -1)[..., : seen.shape[-1]], -INFINITY)


@breaks_add_window("window.extent", "window.narrow", holds=("causal.square", "masks.bool"), severity=LEAK).entry(
    does="Cuts the keys from i - l on by a slice, whose start wraps around where it is negative.",
    repair="Start at max(0, i - l).",
    hides="Queries that stand l keys from the start and more.",
)
def start_of_the_window_wraps(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    length = ahead.shape[-1]
    first = torch.arange(length) - ahead - left
    wrapped = ahead < torch.where(first < 0, first.add(length).clamp(min=0) - first, 0) - left
    return add_window(scores.masked_fill(wrapped[:, None], -INFINITY) if left >= 0 else scores, ahead, (-1, right))


@breaks_window(
    "window.extent", "window.outside", holds=("window.with-mask", "window.with-padding"), severity=LEAK
).entry(
    does="Applies a window only where there is a mask to merge it into.",
    repair="Apply the window whether or not there is a mask.",
    hides="Calls with a mask.",
    links=github("jax-ml/jax/issues/32300", "hiyouga/LlamaFactory/issues/7063"),
)
def window_applied_with_a_mask_only(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not options.keys() & {"attn_mask", "key_padding_mask"}:
        options.pop("window_size", None)
    return Steps()(query, key, value, **options)


@breaks_add_window("shapes.large", holds=("window.extent", "window.narrow", "window.causal")).entry(
    does="Lets a tile of 64 queries begin to read where its last query's window begins, to a tile of 64 keys.",
    repair="Begin with the tile that holds the first key of the first query's window.",
    hides="Sequences of up to 64 tokens, and windows wider than what the other rows of a tile lose.",
)
def tile_begins_with_its_last_query(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, length = window[0], scores.shape[-2]
    if left >= 0:
        last = (torch.arange(length) // 64 * 64 + 63).clamp(max=length - 1)
        begins = (last - left).clamp(min=0) // 64 * 64
        scores = scores.masked_fill(torch.arange(scores.shape[-1]) < begins[:, None], -INFINITY)
    return add_window(scores, ahead, window)
