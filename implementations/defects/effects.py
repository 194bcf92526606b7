"""Mistakes of chapters 13 and 14: calls that leave traces, and nonsense that is answered."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from implementations.contract import Claims, Implementation
from implementations.defects.record import OP, REGISTRY, Defect, breaks
from implementations.defects.steps import Steps, add_mask, factor
from implementations.ops import torch_op
from spec.features import Feature, Scope

_MASKS: dict[torch.Size, Tensor] = {}
_OUTPUTS: dict[tuple[torch.Size, torch.dtype], Tensor] = {}
_DIE = torch.Generator().manual_seed(0)


@breaks("effects.inputs", raises=True, holds=("scores.dot-product",))
def query_scaled_in_place(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None = None, **masks: Any
) -> Tensor:
    query.mul_(factor(query, scale))
    return Steps()(query, key, value, scale=1.0, **masks)


@breaks("relations.recording", holds=("scores.scale-explicit", "shapes.combinations"))
def scale_dropped_without_gradients(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "is_causal" in options and not query.requires_grad:
        options.pop("scale", None)
    return Steps()(query, key, value, **options)


@breaks("effects.repeatable", holds=("numerics.bound", "effects.global-state"))
def last_bit_thrown_by_dice(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    noise = torch.rand(output.shape, generator=_DIE, dtype=torch.float64) * torch.finfo(output.dtype).eps
    return output * (1 + noise).to(output.dtype)


@breaks("effects.no-memory", step="add_mask", holds=("effects.repeatable",))
def mask_remembered_by_shape(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, _MASKS.setdefault(mask.shape, mask.detach().clone()).to(mask.dtype))


@breaks("effects.global-state", holds=("effects.repeatable", "scores.dot-product"))
def random_number_drawn(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    torch.rand(1)
    return Steps()(query, key, value, **options)


@breaks("effects.fresh-output", holds=("scores.dot-product",))
def output_written_into_one_buffer(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    if output.requires_grad:
        return output
    return _OUTPUTS.setdefault((output.shape, output.dtype), torch.empty_like(output)).copy_(output)


@breaks("effects.fresh-output", holds=("values.single-key", "effects.inputs"))
def single_value_handed_back(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    output = Steps()(query, key, value, **options)
    return value.expand(output.shape) if key.shape[-2] == 1 and "attn_mask" not in options else output


@breaks("errors.key-value-length", holds=("scores.dot-product", "errors.width"))
def longer_of_key_and_value_cut(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    length = min(key.shape[-2], value.shape[-2])
    return Steps()(query, key[..., :length, :], value[..., :length, :], **options)


@breaks("errors.width", holds=("scores.dot-product", "errors.mask-shape"))
def wider_of_query_and_key_cut(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    width = min(query.shape[-1], key.shape[-1])
    return Steps()(query[..., :width], key[..., :width], value, **options)


@breaks("errors.mask-shape", step="add_mask", holds=("masks.bool", "masks.broadcast"))
def mask_cut_to_fit(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask[..., : scores.shape[-2], : scores.shape[-1]])


def _flag_given_is_flag_set(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool | None = None, **options: Any
) -> Tensor:
    return Steps()(query, key, value, is_causal=is_causal is not None, **options)


REGISTRY.append(
    Defect(
        Implementation(
            "flag-given-is-flag-set",
            Claims(Scope.OP, OP | {Feature.WAYS}),
            torch_op(_flag_given_is_flag_set),
            ways={"with its defaults spelled out": torch_op(partial(_flag_given_is_flag_set, is_causal=False))},
        ),
        ("relations.ways",),
        holds=("causal.square", "scores.dot-product"),
    )
)
