"""Head numbers: what query heads have of their own, given to other heads, as where their axis is split wrongly."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from attention_conformance.tests.harness.explain.stages.staged import State

OF_HEADS = {
    "attn_mask": -3,
    "sinks": -1,
    "alibi_slopes": -1,
    "relative_bias": -2,
    "bucketed_bias": -1,
    "head_gates": -1,
}
"""Entries with one part for each query head, and the axis of heads."""
GROUPED = {"of heads that are counted by groups first": 0, "of heads that are counted by key heads first": 1}
"""The numbers of query heads as (group, key head) where they are (key head, group), and the other way."""


def of_other_heads(entry: str) -> Iterator[tuple[str, Callable[[State], Tensor]]]:
    """What is wrong, and the entry of other heads."""
    if entry in OF_HEADS:
        for words, order in GROUPED.items():
            yield words, partial(_of_groups, entry, OF_HEADS[entry], order)


def _of_groups(entry: str, axis: int, order: int, state: State) -> Tensor:
    """What other heads have, as where the axis of heads is split in the wrong order.

    Raises:
        ValueError: there are no groups, or all heads have the same.
    """
    x, heads, kinds = state[entry], state["num_heads"], state["num_kv_heads"]
    if x.ndim < -axis or x.shape[axis] != heads or kinds in (1, heads):
        raise ValueError("the order of heads changes nothing")
    numbers = torch.arange(heads).view((kinds, -1) if order else (-1, kinds)).T.flatten()
    made: Tensor = x.index_select(axis, numbers)
    return made
