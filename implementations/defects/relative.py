"""Mistakes of chapter 21: relative biases."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import add_relative
from attention_conformance.implementations.defects.breaking import GRADIENT, breaks
from attention_conformance.spec.features import Feature

RELATIVE = {Feature.RELATIVE_BIAS, Feature.QUERY_START}
breaks_relative = partial(breaks, claims=RELATIVE)
breaks_add_relative = partial(breaks_relative, step="add_relative")


@breaks_add_relative(
    "positions.relative-bias",
    "positions.relative-start",
    "positions.relative-gradient",
    holds=("scores.dot-product", "masks.float"),
).entry(
    does="Counts distances from key to query.",
    repair="Take the position of the key minus that of the query.",
    hides="Symmetric tables; training from scratch.",
)
def distance_from_key_to_query(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    return add_relative(scores, table, -ahead)


@breaks_add_relative(
    "positions.relative-bias", "positions.relative-gradient", holds=("scores.dot-product", "masks.float")
).entry(
    does="Adds nothing beyond the largest distance of the table.",
    repair="Let all farther keys share the outermost entry of their side.",
    hides="Sequences that the table covers.",
)
def nothing_beyond_the_table(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    covered = (ahead.abs() <= table.shape[-1] // 2)[:, None]
    return torch.where(covered, add_relative(scores, table, ahead), scores)


@breaks_add_relative(
    "positions.relative-bias", "positions.relative-gradient", holds=("scores.dot-product", "masks.float")
).entry(
    does="Looks distances up without adding R, so that negative ones count from the end of the table.",
    repair="Add R, so that the first entry is for the farthest key before the query.",
    hides="Training from scratch, which learns the table in that order.",
)
def table_read_from_its_middle(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    most = table.shape[-1] // 2
    return scores + table[:, ahead.clamp(-most, most)].transpose(0, 1)


@breaks_add_relative(
    "positions.relative-bias", "positions.relative-start", holds=("scores.dot-product", "masks.float")
).entry(
    does="Gives the table of the first head to all heads.",
    repair="Look up a table for each head, and move the axis of the heads in front of queries and keys.",
    hides="A single head; tables that were initialised alike.",
)
def one_table_for_all_heads(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    return add_relative(scores, table[:1].expand_as(table), ahead)


@breaks_add_relative(
    "positions.relative-start", holds=("positions.relative-bias", "positions.relative-gradient")
).entry(
    does="Looks up the distance from the number of the row.",
    repair="Count from the position of the query: add `query_start`.",
    hides="Calls with the whole sequence.",
)
def table_read_by_the_number_of_the_row(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    queries, keys = (torch.arange(n) for n in scores.shape[-2:])
    return add_relative(scores, table, (keys - queries[:, None]).expand(len(scores), -1, -1))


class _LastOnly(torch.autograd.Function):
    """Looks entries up; each gradient of an entry overwrites the one before."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, entries: Tensor) -> Tensor:
        ctx.entries, ctx.shape = entries, table.shape
        return table[:, entries]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        found = gradients[0].new_zeros(ctx.shape)
        flat = gradients[0].flatten(1)
        for at, entry in enumerate(ctx.entries.flatten().tolist()):
            found[:, entry] = flat[:, at]
        return found, None


@breaks_add_relative(
    "positions.relative-gradient", holds=("positions.relative-bias", "gradients.query"), severity=GRADIENT
).entry(
    does="Writes the gradient of each score to its entry, over what is there.",
    repair="Add the gradients of all scores that share an entry.",
    hides="Inference; a sequence in which no distance occurs twice.",
)
def last_gradient_of_an_entry_only(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    most = table.shape[-1] // 2
    found: Tensor = _LastOnly.apply(table, ahead.clamp(-most, most) + most)  # type: ignore[no-untyped-call]  # torch has no types here
    return scores + found.transpose(0, 1)
