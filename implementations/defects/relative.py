"""Mistakes of chapter 21: relative biases."""

from functools import partial

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import add_relative
from attention_conformance.implementations.defects.breaking import GRADIENT, breaks
from attention_conformance.implementations.defects.gradients import distorted
from attention_conformance.spec.features import Feature

RELATIVE = {Feature.RELATIVE_BIAS, Feature.QUERY_START}
breaks_relative = partial(breaks, claims=RELATIVE)
breaks_add_relative = partial(breaks_relative, step="add_relative")
breaks_bias = partial(breaks_add_relative, "positions.relative-bias", holds=("scores.dot-product", "masks.float"))


@breaks_bias("positions.relative-start", "positions.relative-gradient")
def distance_from_key_to_query(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    return add_relative(scores, table, -ahead)


@breaks_bias("positions.relative-gradient")
def nothing_beyond_the_table(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    covered = (ahead.abs() <= table.shape[-1] // 2)[:, None]
    return torch.where(covered, add_relative(scores, table, ahead), scores)


@breaks_bias("positions.relative-gradient")
def table_read_from_its_middle(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    most = table.shape[-1] // 2
    return scores + table[:, ahead.clamp(-most, most)].transpose(0, 1)


@breaks_bias("positions.relative-start")
def one_table_for_all_heads(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    return add_relative(scores, table[:1].expand_as(table), ahead)


@breaks_add_relative("positions.relative-start", holds=("positions.relative-bias", "positions.relative-gradient"))
def table_read_by_the_number_of_the_row(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    queries, keys = (torch.arange(n) for n in scores.shape[-2:])
    return add_relative(scores, table, (keys - queries[:, None]).expand(len(scores), -1, -1))


@breaks_add_relative(
    "positions.relative-gradient", holds=("positions.relative-bias", "gradients.query"), severity=GRADIENT
)
def last_gradient_of_an_entry_only(scores: Tensor, table: Tensor, ahead: Tensor) -> Tensor:
    most = table.shape[-1] // 2
    entries = ahead.clamp(-most, most) + most

    def overwritten(gradient: Tensor) -> Tensor:
        of_table, flat = torch.zeros_like(table), gradient.flatten(1)
        for at, entry in enumerate(entries.flatten().tolist()):
            of_table[:, entry] = flat[:, at]
        return of_table

    return scores + distorted(table, overwritten, lambda table: table[:, entries]).transpose(0, 1)
