"""Masks in NumPy: which keys a query sees and what is added to its scores, for a tile of queries by keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add, and_
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.builtin.inhouse.call_options import Options, starts

Array: TypeAlias = NDArray[Any]
Tile: TypeAlias = tuple[slice, slice]
"""Which queries and which keys."""

SINGLE = np.dtype(np.float32)


@dataclass(frozen=True, eq=False)
class Sight:
    """The masks of a call.

    Attributes:
        query, key: (B or 1, L) positions.
        of_query, of_key: (B or 1, L) the documents they belong to; None: there is only one.
    """

    options: Options[Array]
    query: Array
    key: Array
    of_query: Array | None = None
    of_key: Array | None = None

    @classmethod
    def of(cls, options: Options[Array], shape: tuple[int, ...]) -> Sight:
        """Those of a call with scores of the shape (B, H, Lq, Lk).

        Raises:
            ValueError: a mask does not fit.
        """
        _fitting("attn_mask", options.attn_mask, shape)
        _fitting("key_padding_mask", options.key_padding_mask, (shape[0], shape[-1]))
        if options.attn_mask is not None and options.attn_mask.dtype.kind in "iu":
            raise ValueError(f"attn_mask must be boolean or of floats, not {options.attn_mask.dtype}")
        documents = _documents(options, shape)
        query, key = (
            np.arange(length)[None] if ids is None else within(ids)
            for ids, length in zip(documents, shape[-2:], strict=True)
        )
        start = (options.query_start or 0) if options.query_starts is None else options.query_starts[:, None]
        return cls(options, query + start, key, *documents)

    @property
    def rotated_at(self) -> tuple[Array, Array]:
        """(B or 1, Lq) and (B or 1, Lk): the positions by which they are rotated: those given, or where they stand."""
        query, key = self.options.query_positions, self.options.key_positions
        return self.query if query is None else np.atleast_2d(query), self.key if key is None else np.atleast_2d(key)

    def visible(self, tile: Tile) -> Array | None:
        """(B or 1, H or 1, rows, keys), True = may attend; None is all of them."""
        conditions = [*self._by_mask(tile), *self._by_place(tile)]
        return reduce(and_, conditions) if conditions else None

    def _by_mask(self, tile: Tile) -> Iterator[Array]:
        mask, padding = self.options.attn_mask, self.options.key_padding_mask
        if mask is not None:
            part = cut(mask, tile)
            yield part if part.dtype.kind == "b" else part.astype(SINGLE) != -np.inf
        if padding is not None:
            yield padding.astype(bool)[:, None, None, tile[1]]
        if (lengths := self.options.valid_lens) is not None:
            counts = lengths[:, None] if lengths.ndim == 1 else lengths[:, tile[0]]
            yield (np.arange(tile[1].start, tile[1].stop) < counts[..., None])[:, None]
        if self.options.query_lens is not None:
            yield (np.arange(tile[0].start, tile[0].stop) < self.options.query_lens[:, None])[:, None, :, None]

    def _by_place(self, tile: Tile) -> Iterator[Array]:
        (left, right), ahead = self.options.window_size, self.ahead(tile)[:, None]
        if left >= 0:
            yield ahead >= -left
        if right >= 0:
            yield ahead <= right
        if self.options.is_causal:
            yield ahead <= 0
        if self.of_query is not None and self.of_key is not None:
            yield (self.of_query[:, tile[0], None] == self.of_key[:, None, tile[1]])[:, None]

    def ahead(self, tile: Tile) -> Array:
        """(B or 1, rows, keys): so far each key stands after the query."""
        return self.key[:, None, tile[1]] - self.query[:, tile[0], None]

    def added(self, tile: Tile) -> Array | None:
        """(B or 1, H or 1, rows, keys): float mask, slopes times distances and relative biases; None is nothing."""
        parts = [part.astype(SINGLE) for part in self._added(tile)]
        return reduce(add, parts) if parts else None

    def _added(self, tile: Tile) -> Iterator[Array]:
        mask, slopes, table = self.options.attn_mask, self.options.alibi_slopes, self.options.relative_bias
        if mask is not None and mask.dtype.kind != "b":
            yield cut(mask, tile)
        if slopes is not None:
            yield -slopes.astype(SINGLE)[..., None, None] * np.abs(self.ahead(tile))[:, None]
        if table is not None:
            most = table.shape[-1] // 2
            yield np.moveaxis(table[:, np.clip(self.ahead(tile), -most, most) + most], 0, 1)
        if self.options.bucketed_bias is not None:
            yield np.moveaxis(self.options.bucketed_bias[self.buckets(tile)], -1, 1)

    def buckets(self, tile: Tile) -> Array:
        """(B or 1, rows, keys): which row of the table of biases each score gets."""
        call, ahead = self.options, self.ahead(tile)
        assert call.bucketed_bias is not None
        count = len(call.bucketed_bias) // (2 if call.bidirectional else 1)
        edges = np.asarray(starts(count, call.max_distance))
        if not call.bidirectional:
            return np.asarray(np.searchsorted(edges, -ahead, side="right"))
        return np.asarray(np.searchsorted(edges, np.abs(ahead), side="right") + count * (ahead > 0))


def within(ids: Array) -> Array:
    """(B, L): how many tokens with the same id come before each, in memory linear in L."""
    order = np.argsort(ids, axis=-1, kind="stable")
    ordered, count = np.take_along_axis(ids, order, -1), np.arange(ids.shape[-1])
    first = np.ones_like(ordered, dtype=bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    places = np.empty_like(order)
    np.put_along_axis(places, order, count - np.maximum.accumulate(np.where(first, count, 0), axis=-1), -1)
    return places


def cut(mask: Array, tile: Tile) -> Array:
    """A mask of at most four axes -> the part of it for a tile, with four axes."""
    mask = mask[(None,) * (4 - mask.ndim)]
    rows, keys = (part if extent > 1 else slice(None) for part, extent in zip(tile, mask.shape[-2:], strict=True))
    return mask[..., rows, keys]


def _documents(options: Options[Array], shape: tuple[int, ...]) -> tuple[Array | None, Array | None]:
    """(B or 1, Lq) and (B or 1, Lk): the document of each token."""
    documents = options.query_segments, options.key_segments
    if options.cu_seqlens_q is not None and options.cu_seqlens_k is not None:
        first, second = (_counted(ends) for ends in (options.cu_seqlens_q, options.cu_seqlens_k))
        documents = first, second
    lengths = tuple(length if ids is None else ids.shape[-1] for ids, length in zip(documents, shape[-2:], strict=True))
    if lengths != shape[-2:]:
        raise ValueError(f"the documents do not fit {shape[-2]} queries and {shape[-1]} keys")
    return documents


def _counted(ends: Array) -> Array:
    lengths = np.diff(ends)
    if ends[0] != 0 or (lengths < 0).any():
        raise ValueError(f"cumulative lengths must rise from 0: got {ends.tolist()}")
    return np.repeat(np.arange(len(lengths)), lengths)[None]


def _fitting(name: str, mask: Array | None, shape: tuple[int, ...]) -> None:
    if mask is None:
        return
    try:
        np.broadcast_to(mask, shape)
    except ValueError:
        raise ValueError(f"{name} {mask.shape} does not broadcast to {shape}") from None
