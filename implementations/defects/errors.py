"""Mistakes of chapter 14: nonsense that is answered."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import Steps, add_mask
from attention_conformance.implementations.defects.breaking import CRASH, breaks, breaks_layer, github


@breaks("errors.key-value-length", holds=("scores.dot-product", "errors.width"), severity=CRASH).entry(
    does="Cuts the longer of key and value to the length of the shorter.",
    repair="Refuse a key and a value of different lengths.",
    hides="Keys and values of one length.",
    links=github("pytorch/pytorch/pull/193728"),
)
def longer_of_key_and_value_cut(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    length = min(key.shape[-2], value.shape[-2])
    return Steps()(query, key[..., :length, :], value[..., :length, :], **options)


@breaks("errors.key-value-length", holds=("scores.dot-product", "errors.width"), severity=CRASH).entry(
    does="Lengthens the shorter of key and value with zeros.",
    repair="Refuse a key and a value of different lengths.",
    hides="Keys and values of one length.",
    links=github("pytorch/pytorch/pull/193728"),
)
def shorter_of_key_and_value_lengthened(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    length = max(key.shape[-2], value.shape[-2])
    key, value = (F.pad(x, (0, 0, 0, length - x.shape[-2])) for x in (key, value))
    return Steps()(query, key, value, **options)


@breaks("errors.width", holds=("scores.dot-product", "errors.mask-shape"), severity=CRASH).entry(
    does="Cuts the wider of query and key to the width of the narrower.",
    repair="Refuse a query and a key of different widths.",
    hides="Queries and keys of one width.",
)
def wider_of_query_and_key_cut(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    width = min(query.shape[-1], key.shape[-1])
    return Steps()(query[..., :width], key[..., :width], value, **options)


@breaks("errors.mask-shape", step="add_mask", holds=("masks.bool", "masks.broadcast"), severity=CRASH).entry(
    does="Cuts a mask that is too large to the size of the scores.",
    repair="Refuse a mask that does not broadcast to (B, H, Lq, Lk).",
    hides="Masks that fit.",
)
def mask_cut_to_fit(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask[..., : scores.shape[-2], : scores.shape[-1]])


def takes_anything(num_heads: int, width: int) -> object:
    """A constructor that checks nothing."""
    return num_heads, width


@breaks_layer(
    "errors.heads",
    "errors.negative-heads",
    construct=takes_anything,
    holds=("heads.split", "heads.merge"),
    severity=CRASH,
).entry(
    does="Builds a module with any number of heads, also one that does not divide the width.",
    repair="Refuse a number of heads below 1, or that does not divide the width, in the constructor.",
    hides="Numbers of heads that divide the width.",
    links=github("keras-team/keras/pull/23081"),
)
class AnyNumberOfHeads(Layer):
    """Right, apart from its constructor."""


def _rounds_down(num_heads: int, width: int) -> object:
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    return width // num_heads


@breaks_layer("errors.heads", construct=_rounds_down, holds=("errors.negative-heads", "heads.split")).entry(
    does="Rounds the width of a head down where the number of heads does not divide the width.",
    repair="Refuse a number of heads that does not divide the width.",
    hides="Numbers of heads that divide the width.",
    matters="Seven heads of a width of 4096 make 4095: a component is lost, and checkpoints no longer fit.",
    links=github("sgl-project/sglang/pull/32028"),
)
class WidthOfAHeadRoundedDown(Layer):
    """Right, apart from its constructor."""
