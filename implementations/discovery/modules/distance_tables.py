"""Tables of distances: rows that are learned for how far a key is from a query, and what they add to attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product

import torch

from attention_conformance.implementations.discovery.modules.template import Projected, Variant


class Zero(StrEnum):
    """Which row is that of a query and its own key."""

    MIDDLE = "the middle one"
    LAST = "the last one"
    FIRST = "the first one"
    MIRRORED = "the middle one, and keys on both sides read the rows behind it"


class Added(StrEnum):
    """What a table adds."""

    OF_QUERY = "products of queries with its rows, to the scores"
    OF_BOTH = "products of queries and of keys with its rows, to the scores"
    OF_KEY = "products of keys with its rows, to the scores"
    OF_KEY_ELSEWHERE = "products of the keys at the places of queries with its rows, to the scores"
    OF_KEY_AT_QUERY = "products of queries, and of the keys at their places, with its rows, to the scores"
    OF_KEY_REVERSED = "products of queries with its rows, and of keys with rows of the opposite distance, to scores"
    TO_VALUES = "its rows to values, in the mean of each query"
    BIASES = "a number of each head, to the scores"
    BIASES_OF_HEADS = "a number of each head, whose rows are the heads, to the scores"


@dataclass(frozen=True)
class Table:
    """How a table is read.

    Attributes:
        added: what it adds.
        zero: the row of distance 0.
        forward: whether the rows after it are of keys after the query; of one side alone: whatever they are of.
        scaled: whether what is added to the scores is scaled as they are.
        off: by how many rows all of them are read too far on.
    """

    added: Added
    zero: Zero
    forward: bool = True
    scaled: bool = True
    off: int = 0

    def rows(self, count: int, length: int) -> torch.Tensor:
        """(L, L), the row of each query and key, of so many; beyond the ends the last one on a side."""
        place = torch.arange(length)
        ahead = (place - place[:, None]) * (1 if self.forward else -1)
        match self.zero:
            case Zero.MIDDLE:
                found = ahead + count // 2
            case Zero.LAST:
                found = count - 1 - ahead.abs()
            case Zero.FIRST:
                found = ahead.abs()
            case Zero.MIRRORED:
                found = ahead.abs() + count // 2
        return (found + self.off).clamp(0, count - 1)

    def read(self, table: torch.Tensor, length: int) -> torch.Tensor:
        """The row of each query and key, (L, L, d), or (H, L, L, d) of a table for each head (H, rows, d)."""
        return table[..., self.rows(table.shape[-2], length), :]

    def scores(self, table: torch.Tensor, given: Projected, variant: Variant) -> torch.Tensor:
        """What it adds to the scores (B, H, L, L), where it adds to these."""
        length = given.query.shape[2]
        scale = given.query.shape[-1] ** variant.scale if self.scaled else 1.0
        match self.added:
            case Added.BIASES | Added.BIASES_OF_HEADS:
                table = table.mT if self.added is Added.BIASES_OF_HEADS else table
                table = table[:, None] if table.ndim == 1 else table
                return table[self.rows(len(table), length)].permute(2, 0, 1)
            case Added.TO_VALUES:
                return table.new_zeros(())
        read = self.read(table, length)
        rows = "hijd"[-read.ndim :]
        of_query = torch.einsum(f"bhid,{rows}->bhij", given.query, read)
        of_key = torch.einsum(f"bhjd,{rows}->bhij", given.key, read)
        here: torch.Tensor = torch.einsum(f"bhid,{rows}->bhij", given.key, read)
        of_keys = {
            Added.OF_QUERY: torch.zeros(()).double(),
            Added.OF_KEY_AT_QUERY: here,
            Added.OF_KEY_ELSEWHERE: here,
            Added.OF_KEY_REVERSED: torch.einsum(f"bhjd,{rows}->bhij", given.key, read.transpose(-3, -2)),
        }
        added = of_keys.get(self.added, of_key)
        return scale * (added if self.added in (Added.OF_KEY, Added.OF_KEY_ELSEWHERE) else of_query + added)

    def values(self, table: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """What it adds to what each head gives, (B, H, L, d), where it adds to values."""
        if self.added is not Added.TO_VALUES:
            return table.new_zeros(())
        read = self.read(table, weights.shape[-1])
        rows = "hijd"[-read.ndim :]
        added: torch.Tensor = torch.einsum(f"bhij,{rows}->bhid", weights, read)
        return added


SIDES = ((Zero.MIDDLE, True), (Zero.MIDDLE, False), (Zero.LAST, True), (Zero.FIRST, True))
OF_ROWS = (Added.OF_QUERY, Added.TO_VALUES, Added.OF_BOTH, Added.OF_KEY)


def tables_of_shape(shape: tuple[int, ...], heads: int, width: int) -> Iterator[Table]:
    """How a table of this shape may be read, in a module with so many heads and of this width."""
    if len(shape) == 1 and shape[0] not in (heads, width):
        yield from (Table(Added.BIASES, zero, forward) for zero, forward in SIDES)
    of_heads = len(shape) == len("hrd") and shape[0] == heads  # a table for each
    if len(shape) != 2 and not of_heads:
        return
    count, extent = shape[-2:]
    if of_heads and extent != width // heads:
        return
    if extent == heads and not of_heads:
        yield from (Table(Added.BIASES, zero, forward) for zero, forward in SIDES)
    if count == heads and not of_heads:
        yield from (Table(Added.BIASES_OF_HEADS, zero, forward) for zero, forward in SIDES)
    if extent == width // heads:
        yield from (Table(added, zero, forward) for (zero, forward), added in product(SIDES, OF_ROWS))


def mistakes(table: Table) -> Iterator[Table]:
    """What a table of distances on both sides is by the mistakes that are known."""
    if table.zero is Zero.MIDDLE and table.added in (Added.OF_QUERY, Added.OF_BOTH):
        yield replace(table, scaled=False)
        yield replace(table, zero=Zero.MIRRORED)
    if table.zero is Zero.MIDDLE and table.added is Added.OF_BOTH:
        yield from (replace(table, added=each) for each in (Added.OF_KEY_AT_QUERY, Added.OF_KEY_REVERSED))


def off(table: Table) -> Iterator[Table]:
    """The same, read one row too far on either side."""
    yield from (replace(table, off=rows) for rows in (1, -1))
