"""Mistakes of chapter 14: nonsense that is answered."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import Steps, add_mask
from attention_conformance.implementations.defects.breaking import CRASH, breaks, breaks_layer


@breaks("errors.key-value-length", holds=("scores.dot-product", "errors.width"), severity=CRASH)
def longer_of_key_and_value_cut(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    length = min(key.shape[-2], value.shape[-2])
    return Steps()(query, key[..., :length, :], value[..., :length, :], **options)


@breaks("errors.key-value-length", holds=("scores.dot-product", "errors.width"), severity=CRASH)
def shorter_of_key_and_value_lengthened(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    length = max(key.shape[-2], value.shape[-2])
    key, value = (F.pad(x, (0, 0, 0, length - x.shape[-2])) for x in (key, value))
    return Steps()(query, key, value, **options)


@breaks("errors.width", holds=("scores.dot-product", "errors.mask-shape"), severity=CRASH)
def wider_of_query_and_key_cut(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    width = min(query.shape[-1], key.shape[-1])
    return Steps()(query[..., :width], key[..., :width], value, **options)


@breaks("errors.mask-shape", step="add_mask", holds=("masks.bool", "masks.broadcast"), severity=CRASH)
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
)
class AnyNumberOfHeads(Layer):
    """Right, apart from its constructor."""


def _rounds_down(num_heads: int, width: int) -> object:
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, got {num_heads}")
    return width // num_heads


@breaks_layer("errors.heads", construct=_rounds_down, holds=("errors.negative-heads", "heads.split"))
class WidthOfAHeadRoundedDown(Layer):
    """Right, apart from its constructor."""
