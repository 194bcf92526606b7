"""Mistakes of chapter 28: how the answers over splits of the keys are merged."""

from collections.abc import Sequence
from functools import partial
from math import log
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import State, Steps
from attention_conformance.implementations.defects.breaking import GRADIENT, LEAK, NAN, PRECISION, breaks
from attention_conformance.spec.features import Feature

EVERYWHERE = ("merge.empty-split", "merge.causal", "merge.gradient", "merge.sinks")
breaks_splits = partial(breaks, claims={Feature.KEY_SPLITS, Feature.SINKS}, holds=("softmax.log-sum-exp",))
breaks_merge = partial(breaks_splits, step="merge", holds=("merge.log-sum-exp", "scores.dot-product"))
breaks_log = partial(breaks_splits, step="merge", holds=("merge.splits", "softmax.log-sum-exp"))


def stacked(states: Sequence[State]) -> tuple[Tensor, Tensor]:
    """(B, H, Lq, d_v, splits) and (B, H, Lq, splits)."""
    outputs, logs = zip(*states, strict=True)
    return torch.stack(outputs, -1), torch.stack(logs, -1)


@breaks_merge("merge.splits", *EVERYWHERE)
def outputs_of_splits_averaged(states: Sequence[State]) -> State:
    return stacked(states)[0].mean(-1), correct.merge(states)[1]


@breaks_merge("merge.splits", *EVERYWHERE)
def shares_not_normalised(states: Sequence[State]) -> State:
    outputs, logs = stacked(states)
    top = logs.max(-1, keepdim=True).values.clamp(min=torch.finfo(logs.dtype).min)
    return correct.combine(outputs, torch.exp(logs - top)), correct.merge(states)[1]


@breaks_merge("merge.splits", *EVERYWHERE)
def shares_by_powers_of_two(states: Sequence[State]) -> State:
    outputs, logs = stacked(states)
    return correct.combine(outputs, correct.softmax(logs * log(2.0))), correct.merge(states)[1]


@breaks_merge("merge.splits", "merge.causal", "merge.sinks", severity=PRECISION)
def shares_in_half_precision(states: Sequence[State]) -> State:
    outputs, logs = stacked(states)
    return correct.combine(outputs, correct.softmax(logs).half().to(logs.dtype)), correct.merge(states)[1]


@breaks_splits("merge.splits", "merge.log-sum-exp", *EVERYWHERE, step="merge")
def last_split_left_out(states: Sequence[State]) -> State:
    return correct.merge(states[:-1] if len(states) > 1 else states)


@breaks_splits("merge.splits", "merge.log-sum-exp", *EVERYWHERE, step="log_of_split")
def each_split_by_its_own_maximum(scores: Tensor) -> Tensor:
    top = scores.max(-1).values if scores.shape[-1] else scores.new_full(scores.shape[:-1], -torch.inf)
    return correct.log_sum_exp(scores) - top.masked_fill(top == -torch.inf, 0.0)


@breaks_log("merge.log-sum-exp")
def largest_log_sum_exp_for_the_sum(states: Sequence[State]) -> State:
    return correct.merge(states)[0], stacked(states)[1].max(-1).values


@breaks_log("merge.log-sum-exp")
def log_sum_exp_of_the_last_split(states: Sequence[State]) -> State:
    return correct.merge(states)[0], states[-1][1]


@breaks_splits(
    "merge.far", step="merge", holds=("merge.splits", "merge.log-sum-exp", "merge.empty-split"), severity=NAN
)
def merged_without_the_maximum(states: Sequence[State]) -> State:
    outputs, logs = stacked(states)
    exponentials = logs.exp()
    whole = exponentials.sum(-1, keepdim=True)
    shares = torch.where((logs == -torch.inf).all(-1, keepdim=True), 0.0, exponentials / whole)
    return correct.combine(outputs, shares), whole[..., 0].log()


@breaks_splits("merge.empty-row", step="merge", holds=("merge.splits", "merge.empty-split"), severity=NAN)
def minus_infinity_subtracted_from_itself(states: Sequence[State]) -> State:
    outputs, logs = stacked(states)
    return correct.combine(outputs, logs.softmax(-1)), logs.logsumexp(-1)


@breaks_splits("merge.empty-split", step="log_of_split", holds=("merge.splits", "merge.causal"))
def weight_of_one_for_an_empty_split(scores: Tensor) -> Tensor:
    return correct.log_sum_exp(scores) if scores.shape[-1] else scores.new_zeros(scores.shape[:-1])


@breaks_splits("merge.empty-split", step="merge", holds=("merge.splits", "merge.causal"))
def empty_splits_left_out_of_the_shares_alone(states: Sequence[State]) -> State:
    filled = [log for _, log in states if log.numel() and not (log == -torch.inf).all()]
    if not filled:
        return correct.merge(states)
    return correct.merge([(output, log) for (output, _), log in zip(states, filled, strict=False)])


@breaks_splits("merge.causal", holds=("merge.splits", "causal.square"), severity=LEAK, extras=("log_sum_exp",))
def triangle_from_the_start_of_each_split(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    lengths = options.get("split_lengths")
    if lengths is None or not options.get("is_causal"):
        output, _, lse = Steps().answer(query, key, value, **options)
        return output, lse
    within = torch.cat([torch.arange(length) for length in lengths.tolist()])
    steps = Steps(
        add_causal=lambda scores: scores.masked_fill(
            within > torch.arange(scores.shape[-2])[:, None],
            -torch.inf,
        )
    )
    output, _, lse = steps.answer(query, key, value, **options)
    return output, lse


@breaks_splits("merge.sinks", step="split", holds=("merge.splits", "merge.log-sum-exp", "sinks.sum"))
def sink_in_every_split(joined: Tensor, value: Tensor, lengths: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    *others, last = correct.split(joined, value, lengths)
    if joined.shape[-1] == value.shape[-2]:
        return [*others, last]
    return [*((torch.cat([scores, joined[..., -1:]], -1), rows) for scores, rows in others), last]


@breaks_splits("merge.gradient", step="merge", holds=("merge.splits", "gradients.query"), severity=GRADIENT)
def shares_without_a_gradient(states: Sequence[State]) -> State:
    outputs, logs = stacked(states)
    return correct.combine(outputs, correct.softmax(logs.detach())), correct.log_sum_exp(logs)
