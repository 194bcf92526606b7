"""More mistakes of chapter 19: windows with flags, masks, other lengths and starts, and in the backward pass."""

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
    add_window,
    softmax,
)
from attention_conformance.implementations.defects.breaking import GRADIENT, LEAK, NAN, breaks, github
from attention_conformance.implementations.defects.window import STARTED, WINDOW, Window


def beyond(ahead: Tensor, window: Window) -> Tensor:
    """(B, Lq, Lk), True = outside of the window."""
    return add_window(torch.zeros(len(ahead), 1, *ahead.shape[1:]), ahead, window)[:, 0] < 0


breaks_window = partial(breaks, claims=WINDOW)


@breaks_window("window.causal", holds=("window.extent", "causal.square"), severity=LEAK).entry(
    does="Drops the causal flag when there is a window.",
    repair="Leave each query the keys that both allow.",
    hides="Windows whose right extent is 0.",
)
def flag_dropped_with_window(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "window_size" in options:
        options.pop("is_causal", None)
    return Steps()(query, key, value, **options)


@breaks_window("window.causal", holds=("window.extent", "causal.square")).entry(
    does="Drops the window when the causal flag is set.",
    repair="Leave each query the keys that both allow.",
    hides="Sequences within the window.",
    matters="A fused causal path does not know windows: memory and answers are those of global layers.",
    links=github("hiyouga/LlamaFactory/issues/7063"),
)
def window_dropped_with_flag(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if options.get("is_causal"):
        options.pop("window_size", None)
    return Steps()(query, key, value, **options)


@breaks_window("window.causal", holds=("window.extent", "causal.square", "window.with-padding"), severity=LEAK).entry(
    does="Multiplies the additive causal mask by the band of the window: what it hides outside becomes visible.",
    repair="Combine masks as booleans, and convert them to numbers once.",
    hides="Layers without a window.",
    matters="Local layers saw the future, and a training loss fell to 0.",
    links=github("huggingface/transformers/issues/31673"),
)
def causal_mask_multiplied_by_the_band(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not options.get("is_causal"):
        return Steps()(query, key, value, **options)

    def band(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
        return scores.masked_fill(((ahead > 0) & ~beyond(ahead, window))[:, None], -INFINITY)

    flagged = "window_size" not in options
    return Steps(add_window=band)(query, key, value, **{**options, "is_causal": flagged})


@breaks_window("window.with-mask", holds=("window.extent", "masks.bool", "masks.float-infinity"), severity=NAN).entry(
    does="Multiplies an additive mask by the band of the window, minus infinity by 0, and adds the product.",
    repair="Combine masks as booleans, and convert them to numbers once.",
    hides="Calls without a mask, or without a window.",
    links=github("huggingface/transformers/issues/31673"),
)
def mask_multiplied_by_the_band(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is None or "window_size" not in options:
        return Steps()(query, key, value, **options)
    added = torch.zeros(mask.shape).masked_fill(~mask, -INFINITY) if mask.dtype is torch.bool else mask

    def band(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
        return scores + added * ~beyond(ahead, window)[:, None]

    options.pop("attn_mask")
    return Steps(add_window=band)(query, key, value, **options)


@breaks_window("window.with-mask", holds=("window.extent", "masks.bool", "window.with-padding"), severity=LEAK).entry(
    does="Drops the window when there is a mask.",
    repair="Leave each query the keys that both allow.",
    hides="Calls without a mask.",
    matters="A mask for padding makes local layers global.",
)
def window_dropped_with_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "attn_mask" in options:
        options.pop("window_size", None)
    return Steps()(query, key, value, **options)


@breaks_window(
    "window.with-padding", holds=("window.extent", "masks.key-padding", "window.with-mask"), severity=LEAK
).entry(
    does="Drops the padding mask when there is a window.",
    repair="Leave each query the real keys inside its window.",
    hides="Batches without padding.",
)
def padding_dropped_with_window(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "window_size" in options:
        options.pop("key_padding_mask", None)
    return Steps()(query, key, value, **options)


@breaks_window("window.with-padding", holds=("window.extent", "masks.key-padding", "window.with-mask")).entry(
    does="Counts positions over real keys only, for the keys and not for the queries.",
    repair="Count positions in the array, padding included, for both.",
    hides="Padding at the end.",
)
def padding_left_out_of_positions(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    padding = options.get("key_padding_mask")

    def shifted(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
        before = 0 if padding is None else (~padding).cumsum(-1)[:, None]
        return add_window(scores, ahead - before, window)

    return Steps(add_window=shifted)(query, key, value, **options)


@breaks_window(
    "window.lengths", "window.empty-rows", step="add_window", holds=("window.extent", "causal.alignment")
).entry(
    does="Lets the window end at the last key, while it claims that positions start at the first.",
    repair="Put window and triangle at the same corner, and claim that one.",
    hides="As many queries as keys.",
)
def window_from_the_other_corner(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    return add_window(scores, ahead - (ahead.shape[-1] - ahead.shape[-2]), window)


@breaks_window(
    "window.lengths", "window.empty-rows", conventions=BOTTOM_RIGHT, holds=("window.extent", "causal.alignment")
).entry(
    does="Shifts the causal triangle by Lk - Lq, and not the window.",
    repair="Take both from the same positions.",
    hides="As many queries as keys.",
    links=github("trymirai/lalamo/pull/200"),
)
def window_left_at_the_first_key(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps(add_causal=add_bottom_right)(query, key, value, **options)


@breaks_window("window.lengths", holds=("window.extent", "window.causal")).entry(
    does="Drops the window for a single query.",
    repair="Apply the window whatever the number of queries is.",
    hides="Two queries and more, and sequences within the window.",
    matters="Training and prefill are local, and every generated token attends to everything.",
    links=github("XunhaoLai/native-sparse-attention-triton/issues/22"),
)
def window_dropped_for_a_single_query(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if query.shape[-2] == 1:
        options.pop("window_size", None)
    return Steps()(query, key, value, **options)


@breaks_window("softmax.over-keys", "relations.permute-keys", holds=("window.extent", "window.open-side")).entry(
    does="Applies the window of the local layers to those without one, too.",
    repair="Let each layer pass its own window, or none.",
    hides="Sequences within the window.",
    matters="Long prompts lose what only the global layers could carry.",
    links=github("vllm-project/vllm/issues/49795", "vllm-project/vllm/issues/17476"),
)
def window_on_global_layers(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **{"window_size": (2, 2), **options})


@breaks("window.query-start", claims=STARTED, holds=("window.lengths", "window.extent")).entry(
    does="Counts the window from the first query of the chunk, wherever that stands.",
    repair="Add the start to the position of the query, for window and triangle alike.",
    hides="Sequences that are passed at once.",
    links=github("trymirai/lalamo/pull/200"),
)
def window_relative_to_the_chunk(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    start = options.get("query_start") or 0
    steps = Steps(add_window=lambda scores, ahead, window: add_window(scores, ahead + start, window))
    return steps(query, key, value, **options)


@breaks_window(
    "window.any-scores", step="add_window", holds=("window.extent", "window.with-mask"), severity=LEAK
).entry(
    does="Sets scores outside of the window to -10000.",
    repair="Set scores outside of the window to minus infinity.",
    hides="Scores above -10000.",
)
def outside_filled_with_a_number(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    return scores.masked_fill(beyond(ahead, window)[:, None], -1e4)


@breaks_window("window.outside", "window.extent", holds=("causal.square", "masks.bool"), severity=LEAK).entry(
    does="Sets weights outside of the window to 0 after the softmax, without normalising again.",
    repair="Mask the scores before the softmax.",
    hides="Checks that weights outside are 0; sequences within the window.",
    matters="Rows are too small, by the weight of the keys outside: they leak.",
)
def window_cut_after_softmax(
    query: Tensor, key: Tensor, value: Tensor, window_size: Window = (-1, -1), **options: Any
) -> Tensor:
    def cut(scores: Tensor) -> Tensor:
        ahead = torch.arange(key.shape[-2]) - torch.arange(query.shape[-2])[:, None]
        return softmax(scores).masked_fill(beyond(ahead[None], window_size)[:, None], 0.0)

    return Steps(softmax=cut)(query, key, value, **options)


@breaks_window(
    "window.empty-rows", holds=("window.extent", "window.lengths", "masks.empty-row-bool"), severity=NAN
).entry(
    does="Divides 0 by 0 for a query whose window lies beyond all keys, while it claims zeros.",
    repair="Find empty rows after all masks are merged.",
    hides="No more queries than keys.",
)
def rows_emptied_by_window_forgotten(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    steps = Steps(softmax=lambda scores: torch.softmax(scores, -1)) if "window_size" in options else Steps()
    return steps(query, key, value, **options)


@breaks_window("window.empty-rows", step="add_window", holds=("window.extent", "window.lengths"), severity=LEAK).entry(
    does="Moves a window that lies beyond all keys back to the nearest one.",
    repair="Let such a window be empty.",
    hides="No more queries than keys.",
)
def window_moved_to_the_nearest_key(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    outside = beyond(ahead, window)
    nearest = ahead.abs() == ahead.abs().amin(-1, keepdim=True)
    return scores.masked_fill((outside & ~(outside.all(-1, keepdim=True) & nearest))[:, None], -INFINITY)


@breaks_window("window.gradients", holds=("window.extent", "gradients.key", "causal.square"), severity=GRADIENT).entry(
    does="Differentiates as if there were no window.",
    repair="Mask in the backward pass what the forward pass has masked.",
    hides="Outputs.",
    links=github("meta-pytorch/MSLK/pull/263"),
)
def window_forgotten_in_backward(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    right = Steps()(query, key, value, **options)
    options.pop("window_size", None)
    return differentiated_as(right, Steps()(query, key, value, **options))


@breaks_window("window.gradients", holds=("window.extent", "gradients.key", "causal.square"), severity=GRADIENT).entry(
    does="Mirrors the window in the backward pass: from j - l to j + r of the queries.",
    repair="A key at j is seen by the queries from j - r to j + l.",
    hides="Outputs, and symmetric windows.",
)
def window_mirrored_in_backward(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    right = Steps()(query, key, value, **options)
    left_size, right_size = options.get("window_size", (-1, -1))
    mirrored = Steps()(query, key, value, **{**options, "window_size": (right_size, left_size)})
    return differentiated_as(right, mirrored)


def differentiated_as(right: Tensor, other: Tensor) -> Tensor:
    """The numbers of the one with the gradients of the other."""
    return right.detach() + (other - other.detach())
