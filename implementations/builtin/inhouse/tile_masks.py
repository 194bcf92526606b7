"""Masks: which keys a query sees and what is added to its scores, cut out tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add, and_
from typing import NamedTuple

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.inhouse.call_options import Options, starts

INFINITY = float("inf")


class Tile(NamedTuple):
    """A part of the scores: some keys, and the queries that may see any of them.

    Keys of `extra_kv` come after those that masks are about.
    """

    rows: slice
    keys: slice
    extra_kv: bool = False

    def parts(self, size: int) -> Iterator[Tile]:
        """The same in pieces of at most so many rows; none of no rows."""
        for first in range(self.rows.start, self.rows.stop, size):
            yield self._replace(rows=slice(first, min(first + size, self.rows.stop)))


class Documents(NamedTuple):
    """The documents of a packed sequence: (B or 1, L) their numbers, and positions in them."""

    of_query: Tensor
    of_key: Tensor
    query: Tensor
    key: Tensor

    @classmethod
    def of(cls, options: Options[Tensor], lengths: tuple[int, int]) -> Documents | None:
        """Those of the options, for so many queries and keys."""
        if options.query_segments is not None and options.key_segments is not None:
            ids = options.query_segments, options.key_segments
            documents = Documents(*ids, within(ids[0]), within(ids[1]))
        elif options.cu_seqlens_q is not None and options.cu_seqlens_k is not None:
            (of_query, query), (of_key, key) = (
                _counted(ends, length)
                for ends, length in zip((options.cu_seqlens_q, options.cu_seqlens_k), lengths, strict=True)
            )
            documents = Documents(of_query, of_key, query, key)
        else:
            return None
        if (documents.of_query.shape[-1], documents.of_key.shape[-1]) != lengths:
            raise ValueError(f"the documents do not fit {lengths[0]} queries and {lengths[1]} keys")
        return documents


def within(ids: Tensor) -> Tensor:
    """(B, L): how many tokens with the same id come before each, in O(L) memory."""
    order = ids.argsort(dim=-1, stable=True)
    ordered, count = ids.gather(-1, order), torch.arange(ids.shape[-1], device=ids.device)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    starts = torch.where(first, count, 0)
    starts = starts.cummax(-1).values if starts.numel() else starts
    return torch.empty_like(order).scatter_(-1, order, count - starts)


def _counted(ends: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The document of each token, and its position in there, (1, L)."""
    if int(ends[0]) != 0 or int(ends[-1]) != length or (ends.diff() < 0).any():
        raise ValueError(f"cumulative lengths must rise from 0 to {length}: got {ends.tolist()}")
    count = torch.arange(length, device=ends.device)
    ids = torch.searchsorted(ends[1:].to(count.dtype), count, right=True)
    return ids[None], (count - ends[ids])[None]


@dataclass(frozen=True, eq=False)
class Masks:
    """All masks of a call, for queries and keys that count from `first_query` and `first_key` where they are a part.

    Extra keys, beyond the first `keys`, are visible to every query, and nothing is added to their scores.

    Attributes:
        queries, keys: how many there are.
        documents: where positions do not just count.
        extra_kv: how many keys follow.
    """

    options: Options[Tensor]
    queries: int
    keys: int
    device: torch.device
    first_query: int = 0
    first_key: int = 0
    documents: Documents | None = None
    extra_kv: int = 0

    @classmethod
    def of(cls, options: Options[Tensor], query: Tensor, key: Tensor, extra_kv: int = 0) -> Masks:
        """Those of a call with query and key (B, H, L, d); the last `extra_kv` keys have no masks.

        Raises:
            ValueError: a mask does not fit.
        """
        keys = key.shape[-2] - extra_kv
        shape = (*query.shape[:-1], keys)
        if (mask := options.attn_mask) is not None:
            fitting("attn_mask", mask, shape)
            if not (mask.dtype is torch.bool or mask.dtype.is_floating_point):
                raise ValueError(f"attn_mask must be boolean or of floats, not {mask.dtype}")
        if options.key_padding_mask is not None:
            fitting("key_padding_mask", options.key_padding_mask, (shape[0], keys))
        documents = Documents.of(options, (shape[-2], keys))
        return cls(options, shape[-2], keys, query.device, options.query_start or 0, 0, documents, extra_kv)

    @property
    def whole(self) -> Tile:
        """All queries and keys but the extra ones."""
        return Tile(slice(0, self.queries), slice(0, self.keys))

    @property
    def beyond(self) -> list[Tile]:
        """All queries and the extra keys, where there are any."""
        last = slice(self.keys, self.keys + self.extra_kv)
        return [Tile(slice(0, self.queries), last, extra_kv=True)] if self.extra_kv else []

    def tiles(self, size: int, rows: int | None = None) -> list[Tile]:
        """Tiles of at most so many keys, and rows if that is given; what no query sees is left out."""
        given = [slice(j, min(j + size, self.keys)) for j in range(0, self.keys, size)]
        tiles = [*(Tile(self._rows(keys), keys) for keys in given), *self.beyond]
        return [part for tile in tiles for part in tile.parts(rows or max(1, self.queries))]

    def _rows(self, keys: slice) -> slice:
        """The queries that causal flag and window let see any of these keys."""
        low, high = 0, self.queries
        if self.documents is None and self.options.query_starts is None:
            left, right = self._sides
            first, last = (self.first_key + j - self.first_query for j in (keys.start, keys.stop - 1))
            low = low if right is None else max(low, first - right)
            high = high if left is None else min(high, last + left + 1)
        return slice(low, max(low, high))

    @property
    def _sides(self) -> tuple[int | None, int | None]:
        """So far a query sees to the left and to the right; None is no limit."""
        left, right = (None if side < 0 else side for side in self.options.window_size)
        return left, 0 if self.options.is_causal else right

    def ahead(self, tile: Tile) -> Tensor:
        """(B or 1, rows, keys): so far each key stands after the query."""
        return self.positions("key")[:, None, tile.keys] - self.positions("query")[:, tile.rows, None]

    def positions(self, role: str) -> Tensor:
        """(B or 1, L): where queries or keys stand."""
        first, count = (self.first_query, self.queries) if role == "query" else (self.first_key, self.keys)
        if self.documents is not None:
            counted = self.documents.query if role == "query" else self.documents.key
        else:
            counted = torch.arange(count, device=self.device)[None]
        starts = self.options.query_starts if role == "query" else None
        return first + counted if starts is None else first + counted + starts[:, None]

    def rotated_at(self, role: str) -> Tensor:
        """(B or 1, L): the positions by which queries or keys are rotated: those given, or where they stand."""
        given = self.options.query_positions if role == "query" else self.options.key_positions
        return self.positions(role) if given is None else torch.atleast_2d(given)

    def visible(self, tile: Tile) -> Tensor | None:
        """(B or 1, H or 1, rows, keys), True = may attend; None is all of them."""
        conditions = [] if tile.extra_kv else [*self._by_mask(tile), *self._by_place(tile)]
        return reduce(and_, conditions) if conditions else None

    def _by_mask(self, tile: Tile) -> Iterator[Tensor]:
        mask, padding = self.options.attn_mask, self.options.key_padding_mask
        if mask is not None:
            part = cut(mask, tile)
            yield part if part.dtype is torch.bool else part != -INFINITY
        if padding is not None:
            yield padding[:, None, None, tile.keys]
        if (lengths := self.options.valid_lens) is not None:
            counts = lengths[:, None] if lengths.ndim == 1 else lengths[:, tile.rows]
            yield (torch.arange(tile.keys.start, tile.keys.stop, device=self.device) < counts[..., None])[:, None]
        if (real := self.options.query_lens) is not None:
            yield (torch.arange(tile.rows.start, tile.rows.stop, device=self.device) < real[:, None])[:, None, :, None]

    def _by_place(self, tile: Tile) -> Iterator[Tensor]:
        (left, right), documents = self._sides, self.documents
        if left is not None:
            yield (self.ahead(tile) >= -left)[:, None]
        if right is not None:
            yield (self.ahead(tile) <= right)[:, None]
        if documents is not None:
            yield (documents.of_query[:, tile.rows, None] == documents.of_key[:, None, tile.keys])[:, None]

    def added(self, tile: Tile, dtype: torch.dtype) -> Tensor | None:
        """(B or 1, H or 1, rows, keys): float mask, slopes times distances and relative biases; None is nothing."""
        parts = [] if tile.extra_kv else list(self._added(tile))
        return reduce(add, [part.to(dtype) for part in parts]) if parts else None

    def _added(self, tile: Tile) -> Iterator[Tensor]:
        mask, slopes, table = self.options.attn_mask, self.options.alibi_slopes, self.options.relative_bias
        if mask is not None and mask.dtype is not torch.bool:
            yield cut(mask, tile)
        if slopes is not None:
            yield -slopes[..., None, None] * self.ahead(tile).abs()[:, None]
        if table is not None:
            yield table[:, self.entries(tile)].transpose(0, 1)
        if self.options.bucketed_bias is not None:
            yield self.options.bucketed_bias[self.buckets(tile)].movedim(-1, 1)

    def entries(self, tile: Tile) -> Tensor:
        """(B or 1, rows, keys): which entry of the table of relative biases each score gets."""
        assert self.options.relative_bias is not None
        most = self.options.relative_bias.shape[-1] // 2
        return self.ahead(tile).clamp(-most, most) + most

    def buckets(self, tile: Tile) -> Tensor:
        """(B or 1, rows, keys): which row of the table of biases by bucket each score gets."""
        call, ahead = self.options, self.ahead(tile)
        assert call.bucketed_bias is not None
        count = len(call.bucketed_bias) // (2 if call.bidirectional else 1)
        edges = torch.tensor(starts(count, call.max_distance), dtype=torch.float64, device=ahead.device)
        distance = ahead.abs() if call.bidirectional else -ahead
        found = torch.bucketize(distance.double(), edges, right=True)
        return found + count * (ahead > 0) if call.bidirectional else found


def cut(mask: Tensor, tile: Tile) -> Tensor:
    """A mask of at most four axes -> the part of it for a tile, with four axes."""
    mask = mask[(None,) * (4 - mask.ndim)]
    rows, keys = (extent > 1 for extent in mask.shape[-2:])
    return mask[..., tile.rows if rows else slice(None), tile.keys if keys else slice(None)]


def fitting(name: str, mask: Tensor, shape: tuple[int, ...]) -> None:
    """Refuses a mask that does not broadcast to the shape.

    Raises:
        ValueError: with the name and both shapes.
    """
    try:
        mask.expand(shape)
    except RuntimeError:
        raise ValueError(f"{name} {tuple(mask.shape)} does not broadcast to {shape}") from None
