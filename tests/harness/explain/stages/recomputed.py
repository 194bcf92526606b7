"""Recomputed: backward passes that make the weights anew from scores that lack something, and the stored sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attention_conformance.tests.harness.explain.stages.staged import INFINITY, STAGE, STAGES, Stage, State

FIRST, LAST = STAGES.index(STAGE["product"]), STAGES.index(STAGE["sink"])
MAKING_SCORES = STAGES[FIRST:LAST]
"""Stages that a backward pass goes through again where the weights were not kept."""


class _Recomputed(torch.autograd.Function):
    """The heads as they are; in their gradient P is exp(scores - log-sum-exp), the sum kept from the forward pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, value: Tensor, heads: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(scores, value, heads, kept)
        return heads.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (along,) = grads
        scores, value, heads, kept = ctx.saved_tensors
        weights = torch.where(kept[..., None] > -INFINITY, (scores - kept[..., None]).exp(), 0.0)
        inner = along @ value.mT - (along * heads).sum(-1, keepdim=True)
        return weights * inner, weights.mT @ along, None, None


def recomputing(change: Callable[[tuple[Stage, ...]], tuple[Stage, ...]]) -> Stage:
    """The weighted sum whose backward pass goes through changed stages again.

    Raises:
        ValueError: nothing that makes scores is changed.
    """
    again = [stage for stage in change(STAGES) if stage not in STAGES or stage in MAKING_SCORES]
    if again == list(MAKING_SCORES):
        raise ValueError("the scores are the same")
    right = STAGE["weighted sum"]
    return Stage(right.name, lambda state: _mixed(again, state), (*right.reads, "query", "key"))


def _mixed(again: Sequence[Stage], state: State) -> State:
    made, kept = STAGE["weighted sum"].change(state), state["log_sum_exp"]
    if kept is None or state.get("sinks") is not None:
        raise ValueError("no sum of these scores was kept")
    anew = state | {"soft": False}
    for stage in again:
        anew = anew | (stage.change(anew) if stage.active(anew) else {})
    heads = _Recomputed.apply(anew["scores"], state["value"], made["heads"].detach(), kept.detach())  # type: ignore[no-untyped-call]
    return made | {"heads": heads}
