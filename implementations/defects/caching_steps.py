"""A cache in steps: right as it stands, and wrong in one place once a step is replaced."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.cached import Feed, Stream, cached
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.defects.record import NONE, REGISTRY, Defect
from attention_conformance.implementations.defects.steps import Asked, Steps, accumulator, turn
from attention_conformance.spec.features import Feature, Scope

Mistake = TypeVar("Mistake", bound=Callable[..., Any])

FEATURES = frozenset(
    {
        Feature.CORE,
        Feature.HEADS,
        Feature.CROSS,
        Feature.KEY_VALUE,
        Feature.VALUE_WIDTH,
        Feature.SCALE,
        Feature.CAUSAL,
        Feature.VIEWS,
        Feature.WINDOW,
        Feature.ROTARY,
        Feature.ALIBI,
        Feature.GROUPED,
        Feature.QUERY_START,
        Feature.CACHE,
        Feature.STATIC_CACHE,
        Feature.RING_CACHE,
    }
)


@dataclass(frozen=True, eq=False)
class Rows:
    """Keys (B, Hk, L, d_k) and values (B, Hk, L, d_v), and the position of each, (L,); -1: it was never written."""

    key: Tensor
    value: Tensor
    places: Tensor

    def taken(self, which: Tensor) -> Rows:
        """Some of them, by a mask (L,) or by numbers."""
        return Rows(self.key[:, :, which], self.value[:, :, which], self.places[which])

    @property
    def written(self) -> Rows:
        """Those that were written."""
        return self.taken(self.places >= 0)


def joined(first: Rows, second: Rows) -> Rows:
    """Both, one after the other."""
    one, other = ((rows.key, rows.value, rows.places) for rows in (first, second))
    key, value, places = (torch.cat(pair, -2 if pair[0].ndim > 1 else 0) for pair in zip(one, other, strict=True))
    return Rows(key, value, places)


def make(stream: Stream) -> Rows:
    """Room for keys and values, nothing of it written."""
    wide = accumulator(stream.storage(1).dtype)
    key, value = (stream.storage(width).to(wide) for width in (stream.d_k, stream.d_v))
    return Rows(key, value, torch.full((stream.room,), -1))


def stand(first: int, length: int, room: int) -> Tensor:
    """The positions of the queries of a piece that begins at position `first`."""
    return first + torch.arange(length)


def rotate_query(query: Tensor, places: Tensor, base: float) -> Tensor:
    """Turned by the angles of its positions (L,)."""
    return turn(query, places.expand(len(query), -1), base)


def rotate_key(key: Tensor, places: Tensor, base: float) -> Tensor:
    """Turned by the angles of its positions (L,), before it is kept."""
    return turn(key, places.expand(len(key), -1), base)


def write(store: Rows, new: Rows, stream: Stream) -> Rows:
    """What is kept: everything where there is no room to heed, else the last rows, each in the slot of its position."""
    if not stream.room:
        return joined(store, new)
    last = new.taken(torch.arange(len(new.places))[-stream.room :])
    return put(store, last, last.places % stream.room)


def put(store: Rows, new: Rows, slots: Tensor) -> Rows:
    """The store with new rows in these slots, (L,)."""
    key, value, places = store.key.clone(), store.value.clone(), store.places.clone()
    key[:, :, slots], value[:, :, slots], places[slots] = new.key, new.value, new.places
    return Rows(key, value, places)


def see(store: Rows, new: Rows, after: Rows) -> Rows:
    """What a piece attends to: what was kept before it, and itself; `after` is what is kept with it."""
    return joined(store.written, new)


def flags(options: dict[str, Any], first: int, length: int) -> dict[str, Any]:
    """The options of a call for `length` queries from position `first` on."""
    return options


STEPS = Steps()


@dataclass(frozen=True)
class CacheSteps:
    """Attention to what is kept and to what is new, in float32 for half types."""

    steps: Steps = STEPS
    make: Callable[[Stream], Rows] = make
    stand: Callable[[int, int, int], Tensor] = stand
    rotate_query: Callable[[Tensor, Tensor, float], Tensor] = rotate_query
    rotate_key: Callable[[Tensor, Tensor, float], Tensor] = rotate_key
    write: Callable[[Rows, Rows, Stream], Rows] = write
    see: Callable[[Rows, Rows, Rows], Rows] = see
    flags: Callable[[dict[str, Any], int, int], dict[str, Any]] = flags

    def open(self, stream: Stream) -> Feed:
        """The feed of a new sequence."""
        store, first = self.make(stream), 0

        def feed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            nonlocal store, first
            q, k, v = (x.to(accumulator(x.dtype)) for x in (query, key, value))
            options = dict(stream.options)
            places = self.stand(first, q.shape[-2], stream.room) + options.pop("query_start", 0)
            new = Rows(k, v, first + torch.arange(k.shape[-2]))
            if (base := options.pop("rotary_base", None)) is not None:
                q, new = self.rotate_query(q, places, base), replace(new, key=self.rotate_key(k, new.places, base))
            after = self.write(store, new, stream)
            seen, options = self.see(store, new, after), self.flags(options, first, q.shape[-2])
            store, first = after, first + k.shape[-2]
            return self.attend(q, places, seen, options).to(query.dtype)

        return feed

    def attend(self, query: Tensor, places: Tensor, seen: Rows, options: dict[str, Any]) -> Tensor:
        """Of queries at positions (L,) to rows at theirs."""

        def stand(query: Tensor, key: Tensor, asked: Asked) -> tuple[Tensor, Tensor, Tensor]:
            of_query, of_key = places.expand(len(query), -1), seen.places.expand(len(query), -1)
            return of_query, of_key, torch.ones(len(query), query.shape[-2], key.shape[-2], dtype=torch.bool)

        # A start, whatever it is, has the causal flag follow positions.
        return replace(self.steps, places=stand)(query, seen.key, seen.value, query_start=0, **options)


def breaks_cache(
    *clauses: str, step: str = "", of_steps: str = "", claims: Set[Feature] = NONE, **told: Any
) -> Callable[[Mistake], Mistake]:
    """Registers a cache that makes a mistake.

    Args:
        clauses: see `Defect`.
        step: the step of `CacheSteps` that the function stands for; without any, it is a whole `start` of `cached`.
        of_steps: the step of the `Steps` within, instead.
        claims: features beyond `FEATURES`.
        told: the other fields of `Defect`.
    """

    def register(mistake: Mistake) -> Mistake:
        replaced: dict[str, Any] = {step: mistake} if step else {}
        inner: dict[str, Any] = {of_steps: mistake} if of_steps else {}
        opened = CacheSteps(steps=Steps(**inner), **replaced).open if replaced or inner else mistake
        name = mistake.__name__.replace("_", "-")
        made = Implementation(name, Claims(Scope.OP, FEATURES | claims), cached(opened))
        REGISTRY.append(Defect(made, clauses, **told))
        return mistake

    return register
