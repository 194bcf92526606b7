"""Mistakes of chapters 7 and 8: queries that may attend to nothing."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import BOTTOM_RIGHT, INFINITY, Steps
from attention_conformance.implementations.defects.breaking import LEAK, NAN, breaks

breaks_empty_rows = partial(
    breaks,
    "masks.empty-row-bool",
    "masks.empty-row-padding",
    holds=("masks.bool", "masks.key-padding", "masks.empty-row-float"),
)
breaks_bottom_right = partial(breaks, "causal.empty-rows", conventions=BOTTOM_RIGHT)


@breaks(
    "masks.empty-row-bool",
    "masks.empty-row-float",
    "masks.empty-row-padding",
    "gradients.empty-row",
    step="softmax",
    holds=("masks.bool", "masks.float-infinity", "masks.key-padding"),
    severity=NAN,
    follows="empty-row=nan",
)
def empty_row_is_nan(scores: Tensor) -> Tensor:
    return torch.softmax(scores, -1)


@breaks(
    "masks.empty-row-padding",
    "masks.empty-row-bool",
    step="softmax",
    holds=("masks.bool", "masks.key-padding"),
    severity=LEAK,
    follows="empty-row=uniform",
)
def empty_row_is_uniform(scores: Tensor) -> Tensor:
    return torch.softmax(scores.clamp(min=torch.finfo(scores.dtype).min), -1)


@breaks_empty_rows(severity=LEAK)
def empty_rows_unmasked(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    for name in ("attn_mask", "key_padding_mask"):
        mask = options.get(name)
        if mask is not None and mask.dtype is torch.bool:
            options[name] = mask | ~mask.any(-1, keepdim=True)
    return Steps()(query, key, value, **options)


@breaks_empty_rows(severity=NAN)
def lowest_number_added(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def lowered(scores: Tensor, hidden: Tensor) -> Tensor:
        return scores + torch.zeros_like(scores).masked_fill(hidden, torch.finfo(scores.dtype).min)

    steps = Steps(
        add_mask=lambda scores, mask: (
            lowered(scores, ~mask) if mask.dtype is torch.bool else correct.add_mask(scores, mask)
        ),
        add_padding=lambda scores, padding: lowered(scores, ~padding[:, None, None, :]),
    )
    return steps(query, key, value, **options)


@breaks(
    "masks.empty-row-bool", "masks.empty-row-float", step="softmax", holds=("masks.bool", "masks.empty-row-padding")
)
def empty_row_silences_its_sample(scores: Tensor) -> Tensor:
    empty = (scores == -INFINITY).all(-1).flatten(1).any(-1)[:, None, None, None]
    return correct.softmax(scores).masked_fill(empty, 0.0)


@breaks(
    "masks.empty-row-bool", "masks.empty-row-float", step="softmax", holds=("masks.bool", "masks.empty-row-padding")
)
def empty_row_silences_its_other_heads(scores: Tensor) -> Tensor:
    empty = (scores == -INFINITY).all(-1, keepdim=True).any(1, keepdim=True)
    return correct.softmax(scores).masked_fill(empty, 0.0)


@breaks_bottom_right(holds=("causal.alignment", "causal.square", "masks.empty-row-bool"), severity=NAN)
def nan_before_the_triangle(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    steps = Steps(add_causal=correct.add_bottom_right, softmax=lambda scores: torch.softmax(scores, -1))
    return (steps if options.get("is_causal") else Steps())(query, key, value, **options)


@breaks_bottom_right(step="add_causal", holds=("causal.alignment", "causal.square"), severity=LEAK)
def first_key_before_the_triangle(scores: Tensor) -> Tensor:
    positions = torch.arange(scores.shape[-2])[:, None] + scores.shape[-1] - scores.shape[-2]
    return scores.masked_fill(torch.arange(scores.shape[-1]) > positions.clamp(min=0), -INFINITY)
