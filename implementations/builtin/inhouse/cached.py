"""Attention with a cache of keys and values, for sequences that come in pieces: growing, static or a ring."""

from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.adapters.cached import Stream, cached
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.inhouse.rotary import rotated
from attention_conformance.implementations.builtin.sdpa import SDPA_FEATURES
from attention_conformance.spec.features import Feature, Scope

Rows = tuple[Tensor, Tensor, Tensor]
"""Keys (B, Hk, L, d_k), values (B, Hk, L, d_v), and their positions in the sequence (L,)."""


class Storage(Protocol):
    """Where keys and values of earlier pieces are stored."""

    length: int
    """How many tokens came so far, stored or not: the position of the next one."""

    def stored(self) -> Rows:
        """What is stored, in any order."""

    def append(self, key: Tensor, value: Tensor) -> None:
        """Keeps those of the next tokens."""


class Growing:
    """Storage that keeps everything, and is copied when it grows."""

    def __init__(self) -> None:
        self.length = 0
        self._rows: tuple[Tensor, Tensor] | None = None

    def stored(self) -> Rows:
        assert self._rows is not None
        return *self._rows, torch.arange(self.length, device=self._rows[0].device)

    def append(self, key: Tensor, value: Tensor) -> None:
        if self._rows is not None:
            key, value = (torch.cat(pair, 2) for pair in zip(self._rows, (key, value), strict=True))
        self._rows = key, value
        self.length = key.shape[2]


class Static:
    """Storage in two tensors of a fixed size, which nothing else may write to; what they hold at first is not read.

    Args:
        key: (B, Hk, room, d_k).
        value: (B, Hk, room, d_v).
    """

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self.length, self.room = 0, key.shape[2]
        self._key, self._value = key, value

    def stored(self) -> Rows:
        used = slice(0, self.length)
        return self._key[:, :, used], self._value[:, :, used], torch.arange(self.length, device=self._key.device)

    def append(self, key: Tensor, value: Tensor) -> None:
        after = self.length + key.shape[2]
        if after > self.room:
            raise ValueError(f"{after} tokens do not fit into a cache with room for {self.room}")
        self._key[:, :, self.length : after], self._value[:, :, self.length : after] = key, value
        self.length = after


class Ring(Static):
    """Storage that keeps the last tokens only: position j goes to slot j % room, over the one that was there."""

    def stored(self) -> Rows:
        first = max(0, self.length - self.room)
        positions = torch.arange(first, self.length, device=self._key.device)
        slots = positions % self.room
        return self._key[:, :, slots], self._value[:, :, slots], positions

    def append(self, key: Tensor, value: Tensor) -> None:
        length = key.shape[2]
        last = slice(max(0, length - self.room), length)
        slots = torch.arange(self.length + last.start, self.length + length, device=key.device) % self.room
        self._key[:, :, slots], self._value[:, :, slots] = key[:, :, last], value[:, :, last]
        self.length += length


@dataclass
class CachedAttention:
    """Attention that is called with one piece of a sequence after another, and remembers the earlier ones.

    Positions count from the first token of the sequence. One object serves one sequence.

    Attributes:
        storage: a ring is right for windows that reach no farther back than it has room.
        is_causal: no query sees a later key.
        window_size: a query at position i sees keys i - left .. i + right at most; -1 is no limit.
        scale: multiplies the scores; None is 1 / sqrt(d_k).
        rotary_base: pairs (c, c + r / 2) of query and key are rotated by position * rotary_base ** (-2 c / r).
        rotary_dim: r, the components that are rotated; None is d_k.
        alibi_slopes: (H,); each times the distance is subtracted from the scores of its head.
        query_start: the first query stands so much after the first key of its piece.
    """

    storage: Storage
    is_causal: bool = False
    window_size: tuple[int, int] = (-1, -1)
    scale: float | None = None
    rotary_base: float | None = None
    rotary_dim: int | None = None
    alibi_slopes: Tensor | None = None
    query_start: int = 0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attends from the queries of a piece to all that came before and to the piece itself.

        Args:
            query: (B, H, n, d_k).
            key: (B, Hk, n, d_k); Hk divides H, and neighbouring query heads share one.
            value: (B, Hk, n, d_v).

        Returns:
            (B, H, n, d_v); zeros for a query that sees no key.
        """
        _check(query, key, value)
        first = self.storage.length
        places = first + torch.arange(key.shape[2], device=key.device)
        standing = first + self.query_start + torch.arange(query.shape[2], device=query.device)
        if self.rotary_base is not None:
            rotate = partial(rotated, base=self.rotary_base, dim=self.rotary_dim)
            query, key = (rotate(x, at[None]) for x, at in ((query, standing), (key, places)))
        if not first:
            self.storage.append(key, value)
            return self._attended(query, standing, (key, value, places))
        if isinstance(self.storage, Ring):
            # A ring forgets what the first queries of a piece still need: read before it is written to.
            earlier = self.storage.stored()
            rows = (torch.cat([earlier[0], key], 2), torch.cat([earlier[1], value], 2), torch.cat([earlier[2], places]))
            self.storage.append(key, value)
            return self._attended(query, standing, rows)
        self.storage.append(key, value)
        return self._attended(query, standing, self.storage.stored())

    def _attended(self, query: Tensor, standing: Tensor, rows: Rows) -> Tensor:
        key, value, places = rows
        grouped = query.shape[1] != key.shape[1]
        ahead = places - standing[:, None]
        hidden = self._hidden(ahead)
        if self.alibi_slopes is None and key.is_cpu and not hidden.any():
            return F.scaled_dot_product_attention(query, key, value, scale=self.scale, enable_gqa=grouped)
        mask = torch.zeros(ahead.shape, dtype=query.dtype, device=query.device).masked_fill(hidden, float("-inf"))
        if self.alibi_slopes is not None:
            mask = mask - self.alibi_slopes.to(query.dtype)[:, None, None] * ahead.abs()
        output = F.scaled_dot_product_attention(query, key, value, mask, scale=self.scale, enable_gqa=grouped)
        return output.masked_fill(hidden.all(-1, keepdim=True), 0.0)

    def _hidden(self, ahead: Tensor) -> Tensor:
        """(n, L), True = the key, so far ahead of the query, is not seen."""
        hidden = ahead > 0 if self.is_causal else torch.zeros_like(ahead, dtype=torch.bool)
        left, right = self.window_size
        hidden = hidden | (ahead < -left) if left >= 0 else hidden
        return hidden | (ahead > right) if right >= 0 else hidden


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1] or query.shape[1] % max(1, key.shape[1]):
        shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
        raise ValueError(
            f"query and key need one width, key and value one length, key heads divide query heads: got {shapes}"
        )


def _started(stream: Stream) -> CachedAttention:
    """For a new sequence: storage of the kind that is needed, and the options that shapes do not give."""
    storage: Storage = Growing()
    if stream.room:
        kind = Ring if stream.ring else Static
        storage = kind(stream.storage(stream.d_k), stream.storage(stream.d_v))
    return CachedAttention(storage, **{name: o for name, o in stream.options.items() if name != "enable_gqa"})


_MISSING = {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.GRADIENTS, Feature.MASK_GRADIENT}
_ROTARY = {Feature.ROTARY, Feature.PARTIAL_ROTARY}
_OPTIONS = _ROTARY | {Feature.GROUPED, Feature.WINDOW, Feature.ALIBI, Feature.QUERY_START}
_CACHES = {Feature.CACHE, Feature.STATIC_CACHE, Feature.RING_CACHE}
CACHED = (
    Implementation(
        "inhouse.cached",
        Claims(Scope.OP, (SDPA_FEATURES - _MISSING) | _OPTIONS | _CACHES),
        cached(_started),
        "attention that is fed a sequence in pieces and keeps keys and values: growing, static or in a ring",
    ),
)
