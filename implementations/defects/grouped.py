"""Mistakes of chapter 16: which key head a query head uses, and what comes back to it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.mha_interface import MHA_FEATURES
from attention_conformance.implementations.builtin.stepwise.extended_layers import GroupedLayer
from attention_conformance.implementations.builtin.stepwise.steps import (
    BOTTOM_RIGHT,
    INFINITY,
    Steps,
    repeat_kv,
    repeat_kv_tiled,
)
from attention_conformance.implementations.defects.breaking import CRASH, GRADIENT, LEAK, breaks, breaks_layer, github
from attention_conformance.implementations.defects.gradients import distorted
from attention_conformance.spec.features import Conventions, Feature, GroupOrder

GROUPED = frozenset({Feature.GROUPED})
TILED = Conventions(group_order=GroupOrder.TILED)


def folded(rows: Tensor, num_kv_heads: int) -> Tensor:
    """(B, H, ...) with its heads in the order (member, group), and not (group, member)."""
    members = rows.shape[1] // num_kv_heads
    return rows.reshape(len(rows), num_kv_heads, members, *rows.shape[2:]).transpose(1, 2).flatten(1, 2)


breaks_groups = partial(breaks, claims=GROUPED)
breaks_repeat_kv = partial(breaks_groups, step="repeat_kv")


@breaks_repeat_kv("grouped.order", holds=("grouped.single-key-head", "heads.independent")).entry(
    does="Repeats all key heads in turn, while it claims that each is repeated in place.",
    repair="Give query head h the key head h // (H / Hk): repeat_interleave, and not repeat or tile.",
    hides="One key head, and as many as there are query heads.",
    matters="Loaded checkpoints run with wrong keys; a published operator had it in its specification.",
    links=github("onnx/onnx/pull/7274", "ekzhang/jax-js/pull/180", "apple/axlearn/pull/842"),
)
def key_heads_repeated_in_turn(rows: Tensor, num_heads: int) -> Tensor:
    return repeat_kv_tiled(rows, num_heads)


@breaks_repeat_kv("grouped.order", conventions=TILED, holds=("grouped.single-key-head", "heads.independent")).entry(
    does="Repeats each key head in place, while it claims that all are repeated in turn.",
    repair="Claim the order that is built.",
    hides="One key head, and as many as there are query heads.",
)
def key_heads_repeated_in_place(rows: Tensor, num_heads: int) -> Tensor:
    return repeat_kv(rows, num_heads)


@breaks_groups(
    "grouped.order", extras=("log_sum_exp",), holds=("grouped.single-key-head", "grouped.log-sum-exp")
).entry(
    does="Groups the key heads in place, and the value heads in turn.",
    repair="Use one rule for keys and values.",
    hides="One key head; weights and log-sum-exps, which are right.",
)
def values_grouped_in_another_order(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    output, _, lse = Steps().answer(query, key, repeat_kv_tiled(value, query.shape[1]), **options)
    return output, lse


@breaks_repeat_kv("grouped.order", "grouped.masks", holds=("grouped.single-key-head", "heads.independent")).entry(
    does="Gives every query head the first key head.",
    repair="Compute the offset of a key head from the key's own strides and number of heads.",
    hides="One key head, and as many as there are query heads.",
    links=github("BobMcDear/attorch/issues/14"),
)
def first_key_head_for_all(rows: Tensor, num_heads: int) -> Tensor:
    return repeat_kv(rows if rows.shape[1] == num_heads else rows[:, :1], num_heads)


@breaks_groups("grouped.order", holds=("grouped.single-key-head", "grouped.masks")).entry(
    does="Swaps groups and their members where a single query is folded into the head axis.",
    repair="Fold (Hk, g), in this order, on the way in and on the way out.",
    hides="Several queries; one key head.",
    links=github("HKUSTDial/flash-sparse-attention/issues/107"),
)
def single_query_folded_the_other_way(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    steps = Steps(repeat_kv=repeat_kv_tiled) if query.shape[-2] == 1 else Steps()
    return steps(query, key, value, **options)


@breaks_groups(
    "grouped.single-key-head", holds=("grouped.order", "heads.independent"), severity=LEAK, raises=True
).entry(
    does="Drops the head axis of a single key head, so that samples are taken for heads.",
    repair="Keep the axis: (B, 1, Lk, d) broadcasts against (B, H, Lq, d).",
    hides="A batch of one sample; other sizes fail with an error, unless there are as many samples as heads.",
    matters="Each head reads another sample's keys: users see each other's text.",
)
def single_key_head_squeezed(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if key.shape[1] == 1 and query.shape[1] > 1:
        key, value = (x.squeeze(1).expand(*query.shape[:2], *x.shape[2:]) for x in (key, value))
    return Steps()(query, key, value, **options)


@breaks_repeat_kv("grouped.whole-groups", holds=("grouped.order", "grouped.single-key-head"), severity=CRASH).entry(
    does="Spreads the query heads over the key heads as evenly as it can, where the numbers do not divide.",
    repair="Refuse a number of query heads that is no multiple of the number of key heads.",
    hides="Numbers that divide.",
    links=github("sgl-project/sglang/pull/32028", "keras-team/keras/pull/23081"),
)
def uneven_groups_answered(rows: Tensor, num_heads: int) -> Tensor:
    return rows[:, torch.arange(num_heads) * rows.shape[1] // num_heads]


@breaks_groups("grouped.masks", holds=("grouped.order", "masks.broadcast")).entry(
    does="Gives all query heads of a group the mask of the first of them.",
    repair="Let the head axis of a mask count query heads.",
    hides="Masks that are the same for all heads.",
    matters="Biases of position with a slope for each head are read with the stride of the key heads.",
)
def mask_of_the_first_in_the_group(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.get("attn_mask")
    if mask is not None and mask.ndim > 2 and mask.shape[-3] > 1:
        heads, groups = torch.arange(query.shape[1]), query.shape[1] // key.shape[1]
        options["attn_mask"] = mask[..., heads // groups * groups, :, :]
    return Steps()(query, key, value, **options)


@breaks_groups("grouped.causal", holds=("grouped.order", "grouped.masks", "causal.square"), severity=LEAK).entry(
    does="Stacks the queries of a group into one sequence, and takes the row in it for the position.",
    repair="Take the row number modulo Lq before it is compared with the key's.",
    hides="Calls without the flag, and as many key heads as query heads.",
    links=github("facebookresearch/xformers/pull/1239", "Dao-AILab/flash-attention/pull/2528"),
)
def causal_over_stacked_queries(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    groups, length = query.shape[1] // key.shape[1], query.shape[-2]

    def stacked(scores: Tensor) -> Tensor:
        rows = torch.arange(scores.shape[1])[:, None] % groups * length + torch.arange(length)
        return scores.masked_fill(torch.arange(scores.shape[-1]) > rows[..., None], -INFINITY)

    return Steps(add_causal=stacked)(query, key, value, **options)


@breaks_groups("grouped.causal", conventions=BOTTOM_RIGHT, holds=("grouped.order", "causal.alignment")).entry(
    does="Lets the triangle of stacked queries end at the last key by the length of the stack.",
    repair="Shift by Lk - Lq, with Lq the queries of one head.",
    hides="As many key heads as query heads.",
)
def offset_of_stacked_queries(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    stack = query.shape[-2] * query.shape[1] // key.shape[1]

    def shifted(scores: Tensor) -> Tensor:
        seen = torch.ones_like(scores, dtype=torch.bool).tril(scores.shape[-1] - stack)
        return scores.masked_fill(~seen, -INFINITY)

    return Steps(add_causal=shifted)(query, key, value, **options)


@breaks_groups("grouped.layouts", holds=("grouped.order", "grouped.causal", "shapes.views")).entry(
    does="Reads strided keys and values of groups as if they lay in memory token by token.",
    repair="Pass each array's own strides to the kernel.",
    hides="Contiguous arrays, and as many key heads as query heads.",
    links=github("jax-ml/jax/pull/39521"),
)
def strided_key_heads_misread(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if key.shape[1] != query.shape[1] and not key.is_contiguous():
        key, value = (x.transpose(1, 2).reshape(x.shape) for x in (key, value))
    return Steps()(query, key, value, **options)


@breaks_groups("grouped.weights", extras=("weights",), holds=("grouped.order", "grouped.masks")).entry(
    does="Returns the weights with the heads in the order in which they were folded.",
    repair="Unfold (Hk, g) to H as the output is unfolded.",
    hides="The output; one key head, and as many as there are query heads.",
)
def weights_in_folded_order(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    output, weights, _ = Steps().answer(query, key, value, **options)
    return output, folded(weights, key.shape[1])


@breaks_groups("grouped.log-sum-exp", extras=("log_sum_exp",), holds=("grouped.order", "grouped.masks")).entry(
    does="Returns the log-sum-exp of the first query head for each key head.",
    repair="Store one number for each query head and query.",
    hides="The output, and as many key heads as query heads.",
)
def log_sum_exp_of_key_heads(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    output, _, lse = Steps().answer(query, key, value, **options)
    groups = query.shape[1] // key.shape[1]
    return output, lse[:, ::groups].repeat_interleave(groups, 1)


@breaks_repeat_kv(
    "grouped.gradients", holds=("grouped.order", "gradients.key", "gradients.value"), severity=GRADIENT
).entry(
    does="Lets the last query head of a group overwrite the gradient of their key head.",
    repair="Add up the gradients of a group: atomically, or in one loop over its members.",
    hides="Outputs; groups of one.",
    links=github("fla-org/flash-linear-attention/pull/384"),
)
def group_gradient_overwritten(rows: Tensor, num_heads: int) -> Tensor:
    groups = num_heads // rows.shape[1]
    last = (torch.arange(num_heads) % groups == groups - 1)[:, None, None]
    return distorted(repeat_kv(rows, num_heads), lambda gradient: gradient * last)


@breaks_repeat_kv(
    "grouped.gradients", holds=("grouped.order", "gradients.key", "gradients.value"), severity=GRADIENT
).entry(
    does="Takes the mean of the gradients of a group instead of their sum.",
    repair="Add up the gradients of a group.",
    hides="Outputs; groups of one; directions of gradients.",
    matters="Keys and values learn more slowly, by g; an optimiser that normalises hides it.",
)
def group_gradient_averaged(rows: Tensor, num_heads: int) -> Tensor:
    groups = num_heads // rows.shape[1]
    return repeat_kv(distorted(rows, lambda gradient: gradient / groups), num_heads)


@breaks_repeat_kv(
    "grouped.gradients", holds=("grouped.order", "grouped.single-key-head", "gradients.value"), severity=GRADIENT
).entry(
    does="Shares key heads in place, and sums their gradients as if they were shared in turn.",
    repair="Sum in the backward pass over (Hk, g), in this order.",
    hides="Outputs; one key head, and as many as there are query heads.",
)
def group_gradient_summed_in_turn(rows: Tensor, num_heads: int) -> Tensor:
    groups = num_heads // rows.shape[1]
    return distorted(repeat_kv(rows, num_heads), lambda gradient: folded(gradient, groups))


@breaks_layer("grouped.order", features=MHA_FEATURES | GROUPED, holds=("grouped.single-key-head", "heads.split")).entry(
    does="Is a layer that repeats all key heads in turn, while it claims that each is repeated in place.",
    repair="Give query head h the key head h // (H / Hk).",
    hides="One key head, and as many as there are query heads; a model of one's own training.",
    matters="Checkpoints that were converted from ordinary heads lose what they knew.",
    links=github("apple/axlearn/pull/842"),
)
class KeyHeadsInTurn(GroupedLayer):
    steps = Steps(repeat_kv=repeat_kv_tiled)


@breaks_layer(
    "grouped.whole-groups", features=MHA_FEATURES | GROUPED, holds=("grouped.order", "heads.split"), severity=CRASH
).entry(
    does="Is a layer that gives the query heads left over by whole groups the last key head.",
    repair="Refuse such numbers of heads in the constructor.",
    hides="Numbers that divide.",
    matters="A wrong configuration trains, and treats heads unequally.",
)
class LeftOverHeadsServed(GroupedLayer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        groups = max(1, q.shape[1] // k.shape[1])
        of = (torch.arange(q.shape[1]) // groups).clamp(max=k.shape[1] - 1)
        return super().attend(q, k[:, of], v[:, of], **options)
