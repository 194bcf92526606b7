"""A key-value cache in steps: right as it is, and wrong in one place if a step is replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.cached import Feed, Stream
from attention_conformance.implementations.builtin.sdpa import SDPA_FEATURES
from attention_conformance.implementations.builtin.stepwise.step_options import CallOptions
from attention_conformance.implementations.builtin.stepwise.steps import Steps, accumulator, rotate
from attention_conformance.spec.features import Feature

_NOT_CACHED = {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.GRADIENTS, Feature.MASK_GRADIENT, Feature.EMPTY_SIZES}
_POSITIONED = {Feature.WINDOW, Feature.ROTARY, Feature.ALIBI, Feature.QUERY_START}
_CACHES = {Feature.CACHE, Feature.STATIC_CACHE, Feature.RING_CACHE, Feature.GROUPED}
CACHE_FEATURES = (SDPA_FEATURES - _NOT_CACHED) | _POSITIONED | _CACHES


@dataclass(frozen=True, eq=False)
class Rows:
    """Keys (B, Hk, L, d_k) and values (B, Hk, L, d_v), and the position of each, (L,); -1: it was never written."""

    key: Tensor
    value: Tensor
    positions: Tensor

    def select(self, which: Tensor) -> Rows:
        """Some of them, by a mask (L,) or by numbers."""
        return Rows(self.key[:, :, which], self.value[:, :, which], self.positions[which])

    @property
    def written(self) -> Rows:
        """Those that were written."""
        return self.select(self.positions >= 0)


def joined(first: Rows, second: Rows) -> Rows:
    """Both, the first before the other."""
    one, other = ((rows.key, rows.value, rows.positions) for rows in (first, second))
    key, value, positions = (torch.cat(pair, -2 if pair[0].ndim > 1 else 0) for pair in zip(one, other, strict=True))
    return Rows(key, value, positions)


def empty_store(stream: Stream) -> Rows:
    """Buffers for keys and values, nothing written yet."""
    wide = accumulator(stream.storage(1).dtype)
    key, value = (stream.storage(width).to(wide) for width in (stream.d_k, stream.d_v))
    return Rows(key, value, torch.full((stream.room,), -1))


def query_positions(first: int, length: int, room: int) -> Tensor:
    """The positions of the queries of a chunk that begins at position `first`."""
    return first + torch.arange(length)


def rotate_query(query: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotated by the angles of its positions (L,)."""
    return rotate(query, positions.expand(len(query), -1), base)


def rotate_key(key: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotated by the angles of its positions (L,), before it is cached."""
    return rotate(key, positions.expand(len(key), -1), base)


def write(store: Rows, new: Rows, stream: Stream) -> Rows:
    """The cache with new rows: all of them without a limit, else the last ones, each in the slot of its position."""
    if not stream.room:
        return joined(store, new)
    last = new.select(torch.arange(len(new.positions))[-stream.room :])
    return write_slots(store, last, last.positions % stream.room)


def write_slots(store: Rows, new: Rows, slots: Tensor) -> Rows:
    """The store with new rows in these slots, (L,)."""
    key, value, positions = store.key.clone(), store.value.clone(), store.positions.clone()
    key[:, :, slots], value[:, :, slots], positions[slots] = new.key, new.value, new.positions
    return Rows(key, value, positions)


def visible(store: Rows, new: Rows, after: Rows) -> Rows:
    """The rows that a chunk attends to: those cached before it, and its own; `after` is the cache with its own."""
    return joined(store.written, new)


def flags(options: dict[str, Any], first: int, length: int) -> dict[str, Any]:
    """The options of a call for `length` queries from position `first` on."""
    return options


STEPS = Steps()


@dataclass(frozen=True)
class CacheSteps:
    """Attention to cached and new rows, in float32 for half types."""

    steps: Steps = STEPS
    empty_store: Callable[[Stream], Rows] = empty_store
    query_positions: Callable[[int, int, int], Tensor] = query_positions
    rotate_query: Callable[[Tensor, Tensor, float], Tensor] = rotate_query
    rotate_key: Callable[[Tensor, Tensor, float], Tensor] = rotate_key
    write: Callable[[Rows, Rows, Stream], Rows] = write
    visible: Callable[[Rows, Rows, Rows], Rows] = visible
    flags: Callable[[dict[str, Any], int, int], dict[str, Any]] = flags

    def open(self, stream: Stream) -> Feed:
        """The feed of a new sequence."""
        store, first = self.empty_store(stream), 0

        def feed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            nonlocal store, first
            q, k, v = (x.to(accumulator(x.dtype)) for x in (query, key, value))
            options = dict(stream.options)
            positions = self.query_positions(first, q.shape[-2], stream.room) + options.pop("query_start", 0)
            new = Rows(k, v, first + torch.arange(k.shape[-2]))
            if (base := options.pop("rotary_base", None)) is not None:
                q = self.rotate_query(q, positions, base)
                new = replace(new, key=self.rotate_key(k, new.positions, base))
            after = self.write(store, new, stream)
            rows, options = self.visible(store, new, after), self.flags(options, first, q.shape[-2])
            store, first = after, first + k.shape[-2]
            return self.attend(q, positions, rows, options).to(query.dtype)

        return feed

    def attend(self, query: Tensor, positions: Tensor, rows: Rows, options: dict[str, Any]) -> Tensor:
        """Attention of queries at positions (L,) to cached rows."""

        def query_positions(query: Tensor, key: Tensor, call: CallOptions) -> tuple[Tensor, Tensor, Tensor]:
            of_query, of_key = positions.expand(len(query), -1), rows.positions.expand(len(query), -1)
            return of_query, of_key, torch.ones(len(query), query.shape[-2], key.shape[-2], dtype=torch.bool)

        # With a start, whatever its value, the causal flag follows positions.
        return replace(self.steps, positions=query_positions)(query, rows.key, rows.value, query_start=0, **options)
