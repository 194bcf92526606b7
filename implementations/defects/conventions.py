"""Mistakes of chapter 27: two answers to one call, depending on something that the caller does not control."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps
from attention_conformance.implementations.defects.breaking import CRASH, LEAK, NAN, breaks, github
from attention_conformance.spec.features import CausalWithMask, Conventions

EITHER = Conventions(causal_with_mask=CausalWithMask.EITHER)
SHORT = 16


@breaks("conventions.empty-row", holds=("masks.empty-row-bool", "masks.bool")).entry(
    does="Answers an empty row with zeros, and with the mean of all values while gradients are recorded.",
    repair="Let every path answer an empty row alike.",
    hides="Tests that look at empty rows in one mode only.",
    matters="A model is trained on one answer and used with the other.",
    links=github("pytorch/pytorch/pull/106668"),
)
def empty_row_by_mode(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not query.requires_grad:
        return Steps()(query, key, value, **options)
    least = torch.finfo(query.dtype).min
    return Steps(softmax=lambda scores: torch.softmax(scores.clamp(min=least), -1))(query, key, value, **options)


@breaks("conventions.finite-mask-fill", holds=("masks.float", "masks.empty-row-float")).entry(
    does="Takes the least finite number for minus infinity, over many keys only.",
    repair="Treat the number alike in all kernels: it is finite.",
    hides="Masks of minus infinity; short sequences.",
    matters="A padded row is an average in one batch, and zeros in the next, longer one.",
    links=github("huggingface/diffusers/pull/14349"),
)
def least_number_by_length(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype.is_floating_point and key.shape[-2] > SHORT:
        options["attn_mask"] = mask.masked_fill(mask <= torch.finfo(mask.dtype).min, -INFINITY)
    return Steps()(query, key, value, **options)


@breaks(
    "conventions.causal-with-mask",
    conventions=EITHER,
    holds=("causal.square", "masks.float", "causal.with-mask"),
    severity=CRASH,
).entry(
    does="Refuses the causal flag together with a float mask, and merges it into a boolean one.",
    repair="Refuse both, or merge both.",
    hides="Boolean masks; calls without the flag.",
    matters="Code that works with one mask stops with another.",
    links=github("mindspore-lab/mindone/pull/1229"),
)
def flag_refused_with_floats(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "is_causal" in options and options.get("attn_mask", query.bool()).dtype is not torch.bool:
        raise ValueError("is_causal cannot be combined with a float mask")
    return Steps()(query, key, value, **options)


@breaks("conventions.masked-nan", holds=("masks.bool", "masks.no-influence"), severity=NAN).entry(
    does="Keeps NaN in masked values out of the output, but not over many keys.",
    repair="Clean masked values on every path, or on none.",
    hides="Padding that is finite.",
    matters="A buffer that was never written poisons the long batches only.",
    links=github("pytorch/pytorch/issues/101967"),
)
def masked_nan_by_length(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if key.shape[-2] <= SHORT:
        key, value = key.nan_to_num(), value.nan_to_num()
    return Steps()(query, key, value, **options)


@breaks("conventions.numeric-mask", holds=("masks.bool", "masks.float"), severity=LEAK).entry(
    does="Reads a mask of integers as boolean, and adds it over many keys.",
    repair="Decide by the dtype of the mask alone.",
    hides="Boolean masks.",
    matters="A mask of ones and zeros, as tokenizers make it, hides padding in short batches only.",
)
def integers_by_length(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype is torch.int64 and key.shape[-2] <= SHORT:
        options["attn_mask"] = mask.bool()
    return Steps()(query, key, value, **options)


@breaks("conventions.empty-sizes", holds=("softmax.over-keys", "gradients.query"), severity=CRASH).entry(
    does="Refuses an empty batch while gradients are recorded, and answers it elsewhere.",
    repair="Return an empty result, with empty gradients.",
    hides="Batches that are never empty.",
    matters="The last, empty shard of an epoch stops the training and passed in every test.",
)
def empty_batch_refused_in_training(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if query.requires_grad and query.shape[0] == 0:
        raise RuntimeError("the batch is empty")
    return Steps()(query, key, value, **options)
