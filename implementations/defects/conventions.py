"""Mistakes of chapter 27: two answers to one call, depending on something that the caller does not control."""

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps
from attention_conformance.implementations.defects.breaking import CRASH, LEAK, NAN, breaks
from attention_conformance.spec.conventions import CausalWithMask, Conventions

EITHER = Conventions(causal_with_mask=CausalWithMask.EITHER)
SHORT = 16


@breaks("conventions.empty-row", holds=("masks.empty-row-bool", "masks.bool"))
def empty_row_by_mode(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if not query.requires_grad:
        return Steps()(query, key, value, **options)
    least = torch.finfo(query.dtype).min
    return Steps(softmax=lambda scores: torch.softmax(scores.clamp(min=least), -1))(query, key, value, **options)


@breaks("conventions.finite-mask-fill", holds=("masks.float", "masks.empty-row-float"))
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
)
def flag_refused_with_floats(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "is_causal" in options and options.get("attn_mask", query.bool()).dtype is not torch.bool:
        raise ValueError("is_causal cannot be combined with a float mask")
    return Steps()(query, key, value, **options)


@breaks("conventions.masked-nan", holds=("masks.bool", "masks.no-influence"), severity=NAN)
def masked_nan_by_length(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if key.shape[-2] <= SHORT:
        key, value = key.nan_to_num(), value.nan_to_num()
    return Steps()(query, key, value, **options)


@breaks("conventions.numeric-mask", holds=("masks.bool", "masks.float"), severity=LEAK)
def integers_by_length(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.dtype is torch.int64 and key.shape[-2] <= SHORT:
        options["attn_mask"] = mask.bool()
    return Steps()(query, key, value, **options)


@breaks("conventions.empty-sizes", holds=("softmax.over-keys", "gradients.query"), severity=CRASH)
def empty_batch_refused_in_training(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if query.requires_grad and query.shape[0] == 0:
        raise RuntimeError("the batch is empty")
    return Steps()(query, key, value, **options)
