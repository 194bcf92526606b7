"""Mistakes of chapters 7 and 8: queries that may attend to nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import (
    BOTTOM_RIGHT,
    INFINITY,
    Steps,
    add_bottom_right,
    add_mask,
    softmax,
)
from attention_conformance.implementations.defects.breaking import LEAK, NAN, breaks, github


@breaks(
    "masks.empty-row-bool",
    "masks.empty-row-float",
    "masks.empty-row-padding",
    "gradients.empty-row",
    step="softmax",
    holds=("masks.bool", "masks.float-infinity", "masks.key-padding"),
    severity=NAN,
    follows="empty-row=nan",
).entry(
    does="Takes the softmax of a row of minus infinities, while it claims zeros.",
    repair="Make the row harmless before the softmax, and zero after it.",
    hides="Rows with a key.",
    matters="Padding at the start, empty samples, deep windows: NaN spreads from one row to all later layers.",
    links=github(
        "pytorch/pytorch/issues/103749", "pytorch/pytorch/issues/156707", "openvinotoolkit/openvino/issues/35959"
    ),
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
).entry(
    does="Averages all values, hidden ones too, where a row has no key, while it claims zeros.",
    repair="Give zeros to a row without keys, or claim the mean.",
    hides="Rows with a key.",
    matters="Hidden values get into the output, by a finite stand-in for minus infinity.",
    links=github("d2l-ai/d2l-en/pull/2423", "microsoft/onnxruntime/pull/4129"),
)
def empty_row_is_uniform(scores: Tensor) -> Tensor:
    return torch.softmax(scores.clamp(min=torch.finfo(scores.dtype).min), -1)


@breaks(
    "masks.empty-row-bool",
    "masks.empty-row-padding",
    holds=("masks.bool", "masks.key-padding", "masks.empty-row-float"),
    severity=LEAK,
).entry(
    does="Lifts the mask from a row that it leaves without keys, while it claims zeros.",
    repair="Keep the mask, and give zeros to the row.",
    hides="Rows with a key.",
    matters="A cure for NaN by which padding attends to everything, and everything hidden shows.",
    links=github("huggingface/transformers/pull/26572"),
)
def empty_rows_unmasked(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    for name in ("attn_mask", "key_padding_mask"):
        mask = options.get(name)
        if mask is not None and mask.dtype is torch.bool:
            options[name] = mask | ~mask.any(-1, keepdim=True)
    return Steps()(query, key, value, **options)


@breaks(
    "masks.empty-row-bool",
    "masks.empty-row-padding",
    holds=("masks.bool", "masks.key-padding", "masks.empty-row-float"),
    severity=NAN,
).entry(
    does="Adds the lowest finite number to hidden scores, and once more for padding.",
    repair="Combine masks as booleans, then fill once with minus infinity.",
    hides="Rows with a key.",
    matters="One mask makes an empty row uniform, two make it NaN: the sum is minus infinity.",
    links=github(
        "NVIDIA-NeMo/Automodel/pull/2658", "tensorflow/tensorflow/pull/59657", "huggingface/diffusers/pull/14349"
    ),
)
def lowest_number_added(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def lowered(scores: Tensor, hidden: Tensor) -> Tensor:
        return scores + torch.zeros_like(scores).masked_fill(hidden, torch.finfo(scores.dtype).min)

    steps = Steps(
        add_mask=lambda scores, mask: lowered(scores, ~mask) if mask.dtype is torch.bool else add_mask(scores, mask),
        add_padding=lambda scores, padding: lowered(scores, ~padding[:, None, None, :]),
    )
    return steps(query, key, value, **options)


@breaks(
    "masks.empty-row-bool", "masks.empty-row-float", step="softmax", holds=("masks.bool", "masks.empty-row-padding")
).entry(
    does="Gives a whole sample zeros when any of its rows has no key.",
    repair="Treat each row by itself.",
    hides="Samples whose rows all have a key, and samples whose rows have none.",
)
def empty_row_silences_its_sample(scores: Tensor) -> Tensor:
    empty = (scores == -INFINITY).all(-1).flatten(1).any(-1)[:, None, None, None]
    return softmax(scores).masked_fill(empty, 0.0)


@breaks(
    "causal.empty-rows",
    conventions=BOTTOM_RIGHT,
    holds=("causal.alignment", "causal.square", "masks.empty-row-bool"),
    severity=NAN,
).entry(
    does="Gives NaN to the first rows of a causal triangle that ends at the last key, while it claims zeros.",
    repair="Give zeros to the rows before the triangle begins.",
    hides="No more queries than keys.",
    matters="More queries than keys, as in chunks of a prefill, spoil the later layers.",
    links=github("flashinfer-ai/flashinfer/pull/4401", "Dao-AILab/flash-attention/issues/1778"),
)
def nan_before_the_triangle(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False, **options: Any
) -> Tensor:
    steps = Steps(add_causal=add_bottom_right, softmax=lambda scores: torch.softmax(scores, -1))
    return (steps if is_causal else Steps())(query, key, value, is_causal=is_causal, **options)


@breaks(
    "causal.empty-rows",
    step="add_causal",
    conventions=BOTTOM_RIGHT,
    holds=("causal.alignment", "causal.square"),
    severity=LEAK,
).entry(
    does="Shows the first key to the rows before a causal triangle that ends at the last key.",
    repair="Give zeros to the rows before the triangle begins.",
    hides="No more queries than keys.",
)
def first_key_before_the_triangle(scores: Tensor) -> Tensor:
    positions = torch.arange(scores.shape[-2])[:, None] + scores.shape[-1] - scores.shape[-2]
    return scores.masked_fill(torch.arange(scores.shape[-1]) > positions.clamp(min=0), -INFINITY)
