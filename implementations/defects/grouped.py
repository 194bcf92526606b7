"""Mistakes of chapter 16: which key head a query head uses, and what comes back to it."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.mha_interface import MHA_FEATURES
from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.extended_layers import GroupedLayer
from attention_conformance.implementations.builtin.stepwise.steps import BOTTOM_RIGHT, INFINITY, Steps
from attention_conformance.implementations.defects.breaking import CRASH, GRADIENT, LEAK, breaks, breaks_layer
from attention_conformance.implementations.defects.gradients import distorted
from attention_conformance.spec.conventions import Conventions, GroupOrder
from attention_conformance.spec.features import Feature

GROUPED = frozenset({Feature.GROUPED})
TILED = Conventions(group_order=GroupOrder.TILED)


def folded(rows: Tensor, num_kv_heads: int) -> Tensor:
    """(B, H, ...) with its heads in the order (member, group), and not (group, member)."""
    members = rows.shape[1] // num_kv_heads
    return rows.reshape(len(rows), num_kv_heads, members, *rows.shape[2:]).transpose(1, 2).flatten(1, 2)


breaks_groups = partial(breaks, claims=GROUPED)
breaks_repeat_kv = partial(breaks_groups, step="repeat_kv")


@breaks_repeat_kv("grouped.order", holds=("grouped.single-key-head", "heads.independent"))
def key_heads_repeated_in_turn(rows: Tensor, num_heads: int) -> Tensor:
    return correct.repeat_kv_tiled(rows, num_heads)


@breaks_repeat_kv("grouped.order", conventions=TILED, holds=("grouped.single-key-head", "heads.independent"))
def key_heads_repeated_in_place(rows: Tensor, num_heads: int) -> Tensor:
    return correct.repeat_kv(rows, num_heads)


@breaks_groups("grouped.order", extras=("log_sum_exp",), holds=("grouped.single-key-head", "grouped.log-sum-exp"))
def values_grouped_in_another_order(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    output, _, lse = Steps().answer(query, key, correct.repeat_kv_tiled(value, query.shape[1]), **options)
    return output, lse


@breaks_repeat_kv("grouped.order", "grouped.masks", holds=("grouped.single-key-head", "heads.independent"))
def first_key_head_for_all(rows: Tensor, num_heads: int) -> Tensor:
    return correct.repeat_kv(rows if rows.shape[1] == num_heads else rows[:, :1], num_heads)


@breaks_groups("grouped.order", holds=("grouped.single-key-head", "grouped.masks"))
def single_query_folded_the_other_way(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    steps = Steps(repeat_kv=correct.repeat_kv_tiled) if query.shape[-2] == 1 else Steps()
    return steps(query, key, value, **options)


@breaks_groups("grouped.single-key-head", holds=("grouped.order", "heads.independent"), severity=LEAK, raises=True)
def single_key_head_squeezed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if key.shape[1] == 1 and query.shape[1] > 1:
        key, value = (x.squeeze(1).expand(*query.shape[:2], *x.shape[2:]) for x in (key, value))
    return Steps()(query, key, value, **options)


@breaks_repeat_kv("grouped.whole-groups", holds=("grouped.order", "grouped.single-key-head"), severity=CRASH)
def uneven_groups_answered(rows: Tensor, num_heads: int) -> Tensor:
    return rows[:, torch.arange(num_heads) * rows.shape[1] // num_heads]


@breaks_groups("grouped.masks", holds=("grouped.order", "masks.broadcast"))
def mask_of_the_first_in_the_group(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1:
        heads, groups = torch.arange(query.shape[1]), query.shape[1] // key.shape[1]
        options["attn_mask"] = mask[..., heads // groups * groups, :, :]
    return Steps()(query, key, value, **options)


@breaks_groups("grouped.causal", holds=("grouped.order", "grouped.masks", "causal.square"), severity=LEAK)
def causal_over_stacked_queries(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    groups, length = query.shape[1] // key.shape[1], query.shape[-2]

    def stacked(scores: Tensor) -> Tensor:
        rows = torch.arange(scores.shape[1])[:, None] % groups * length + torch.arange(length)
        return scores.masked_fill(torch.arange(scores.shape[-1]) > rows[..., None], -INFINITY)

    return Steps(add_causal=stacked)(query, key, value, **options)


@breaks_groups("grouped.causal", conventions=BOTTOM_RIGHT, holds=("grouped.order", "causal.alignment"))
def offset_of_stacked_queries(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    stack = query.shape[-2] * query.shape[1] // key.shape[1]

    def shifted(scores: Tensor) -> Tensor:
        visible = torch.ones_like(scores, dtype=torch.bool).tril(scores.shape[-1] - stack)
        return scores.masked_fill(~visible, -INFINITY)

    return Steps(add_causal=shifted)(query, key, value, **options)


@breaks_groups("grouped.layouts", holds=("grouped.order", "grouped.causal", "shapes.views"))
def strided_key_heads_misread(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if key.shape[1] != query.shape[1] and not key.is_contiguous():
        key, value = (x.transpose(1, 2).reshape(x.shape) for x in (key, value))
    return Steps()(query, key, value, **options)


@breaks_groups("grouped.weights", extras=("weights",), holds=("grouped.order", "grouped.masks"))
def weights_in_folded_order(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, folded(weights, key.shape[1])


@breaks_groups("grouped.log-sum-exp", extras=("log_sum_exp",), holds=("grouped.order", "grouped.masks"))
def log_sum_exp_of_key_heads(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    output, _, lse = Steps().answer(query, key, value, **options)
    groups = query.shape[1] // key.shape[1]
    return output, lse[:, ::groups].repeat_interleave(groups, 1)


@breaks_repeat_kv("grouped.gradients", holds=("grouped.order", "gradients.key", "gradients.value"), severity=GRADIENT)
def group_gradient_overwritten(rows: Tensor, num_heads: int) -> Tensor:
    groups = num_heads // rows.shape[1]
    last = (torch.arange(num_heads) % groups == groups - 1)[:, None, None]
    return distorted(correct.repeat_kv(rows, num_heads), lambda gradient: gradient * last)


@breaks_repeat_kv("grouped.gradients", holds=("grouped.order", "gradients.key", "gradients.value"), severity=GRADIENT)
def group_gradient_averaged(rows: Tensor, num_heads: int) -> Tensor:
    groups = num_heads // rows.shape[1]
    return correct.repeat_kv(distorted(rows, lambda gradient: gradient / groups), num_heads)


@breaks_repeat_kv(
    "grouped.gradients", holds=("grouped.order", "grouped.single-key-head", "gradients.value"), severity=GRADIENT
)
def group_gradient_summed_in_turn(rows: Tensor, num_heads: int) -> Tensor:
    groups = num_heads // rows.shape[1]
    return distorted(correct.repeat_kv(rows, num_heads), lambda gradient: folded(gradient, groups))


@breaks_layer("grouped.order", features=MHA_FEATURES | GROUPED, holds=("grouped.single-key-head", "heads.split"))
class KeyHeadsInTurn(GroupedLayer):
    steps = Steps(repeat_kv=correct.repeat_kv_tiled)


@breaks_layer(
    "grouped.whole-groups", features=MHA_FEATURES | GROUPED, holds=("grouped.order", "heads.split"), severity=CRASH
)
class LeftOverHeadsServed(GroupedLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        groups = max(1, q.shape[1] // k.shape[1])
        of = (torch.arange(q.shape[1]) // groups).clamp(max=k.shape[1] - 1)
        return super().attend(q, k[:, of], v[:, of], **options)
