"""Empty caches that are objects with named arrays, of a class of the file or of the names that a function's code reads.

Two of the names are those of buffers, with room for tokens or without any; another may count the tokens so far.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.cache_names import MAKING, OF_KEYS, OF_VALUES
from attention_conformance.implementations.discovery.functions.cache_reads import (
    Reads,
    reads_of,
    says,
    stores,
    written_of,
)
from attention_conformance.implementations.discovery.functions.fed_caches import Taken, longest, zeros
from attention_conformance.implementations.discovery.modules.cache_forms import cache_classes
from attention_conformance.implementations.discovery.modules.own_cache import ROOM
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.implementations.discovery.vocabulary import words_of

KEYS, VALUES = OF_KEYS | {"ks", "kcache"}, OF_VALUES | {"vs", "vcache"}
OF_COUNTS = {
    *("index", "idx", "pos", "position", "positions", "length", "lengths", "len", "lens", "offset", "offsets", "seen"),
    *("cursor", "ptr", "pointer", "end", "filled", "fill", "count", "step", "steps", "cur", "next", "used", "size"),
    *("t", "n", "i", "start", "tokens", "seqlen", "seqlens"),
}
"""Words in the names of how many tokens came before."""
OF_MOST = {"max", "capacity", "room", "maxlen", "limit", "total"}
"""Words in the names of how many tokens there is room for."""
OTHERWISE = {"scale", "scales", "heads", "head", "dim", "norm", "mask", "bias", "dtype", "window", "shape", "zero"}
"""Words in the names of something else about keys or values."""
STARTING = {"zeros", "fresh", "blank", "start", "initial", "initialize", "initialise", "allocated", "reset"}
"""Words in the names of methods that make an empty cache of their class, next to those of functions."""
RESETTING = {"reset", "clear", "init", "empty"}
"""Words in the names of methods that empty a cache."""


class Part(Enum):
    """What a name of an object holds."""

    KEYS = "keys"
    VALUES = "values"
    COUNT = "count"
    MOST = "most"


class Count(Enum):
    """How the tokens so far are counted."""

    NUMBER = "a number"
    ARRAY = "an array without axes"
    SAMPLES = "one for each sample"


class Room(Enum):
    """What buffers hold before the first token."""

    TOKENS = "room"
    NONE = "no tokens"
    MISSING = "None"


def part_of(name: str) -> Part | None:
    """What a field of this name holds; None where that is unknown."""
    words = words_of(name)
    if words & OTHERWISE:
        return None
    if words & OF_MOST:
        return Part.MOST
    if bool(words & KEYS) != bool(words & VALUES) and not words & (OF_COUNTS - {"t", "n", "i"}):
        return Part.KEYS if words & KEYS else Part.VALUES
    return Part.COUNT if words & OF_COUNTS else None


def parts_in(names: Iterable[str]) -> dict[str, Part]:
    """What fields hold, of those that are known; none where they are not keys and values, once each."""
    found = {name: part for name in names if (part := part_of(name)) is not None}
    held = [*found.values()]
    return found if held.count(Part.KEYS) == held.count(Part.VALUES) == 1 and held.count(Part.COUNT) <= 1 else {}


@dataclass(frozen=True)
class ObjectCache:
    """Makes an empty cache.

    Attributes:
        kind: makes it of its parts, by their names.
        parts: what these are.
        room: what its buffers hold at first.
        count: how it counts tokens.
        swapped: whether tokens and heads lie the other way round than in the inputs.
    """

    kind: Callable[..., object]
    parts: Mapping[str, Part]
    room: Room = Room.TOKENS
    count: Count = Count.NUMBER
    swapped: bool = False

    @property
    def has_room(self) -> bool:
        """Whether its buffers hold as much after a call as before it."""
        return self.room is Room.TOKENS

    def __call__(self, inputs: Sequence[Any], taken: Taken) -> object:
        """It, for inputs that are taken so."""
        key, value = inputs[-2:] if len(inputs) > 1 else (inputs[0], inputs[0])
        axes = [*taken.tokens.values()][-2:]
        most = max(ROOM, longest(inputs, taken))
        samples = key.shape[taken.sizes["B"]] if "B" in taken.sizes else 1
        made: dict[Part, Callable[[], object]] = {
            Part.KEYS: partial(self._buffer, key, axes[0], most, taken),
            Part.VALUES: partial(self._buffer, value, axes[-1], most, taken),
            Part.COUNT: partial(self._count, key, samples),
            Part.MOST: lambda: most,
        }
        return self.kind(**{name: made[part]() for name, part in self.parts.items()})

    def _buffer(self, like: Any, axis: int, most: int, taken: Taken) -> Any:
        if self.room is Room.MISSING:
            return None
        shape = [*like.shape]
        shape[axis] = most if self.room is Room.TOKENS else 0
        heads = taken.sizes.get("H", axis)
        if self.swapped:
            shape[axis], shape[heads] = shape[heads], shape[axis]
        return zeros(like, tuple(shape))

    def _count(self, like: Any, samples: int) -> Any:
        if self.count is Count.NUMBER:
            return 0
        none = zeros(like, (samples,) if self.count is Count.SAMPLES else ())
        return none.long() if isinstance(none, torch.Tensor) else none.astype("int32")


def object_caches(function: Callable[..., Any], past: tuple[str, ...]) -> Iterator[ObjectCache]:
    """The objects that may be given as an empty cache, the likelier first: a count has room to count in."""
    if len(past) > 1:
        return
    reads = reads_of(function, past[0])
    several = [*_kinds(function, past[0], reads)]
    for swapped in (False, True):
        for kind, parts in several:
            usual = ObjectCache(kind, parts, swapped=swapped)
            counted = Part.COUNT in parts.values()
            rooms = [*Room] if counted else [Room.NONE, Room.MISSING, Room.TOKENS]
            for room, count in product(rooms, Count if counted else (Count.NUMBER,)):
                if not (swapped and room is Room.MISSING):
                    yield replace(usual, room=room, count=count)


def _kinds(
    function: Callable[..., Any], past: str, reads: Reads
) -> Iterator[tuple[Callable[..., object], dict[str, Part]]]:
    """What makes a cache of parts, and these."""
    for kind in classes_of(function, past):
        parts = parts_in(fields_of(kind))
        if parts:
            yield kind, parts
    if parts := parts_in(reads.attributes):
        yield SimpleNamespace, parts
    if parts := parts_in(reads.items):
        yield dict, parts
    parts = parts_in(reads.parts)
    if len(parts) == len(reads.parts) > 2:
        yield partial(_tuple, reads.parts), parts


def _tuple(names: tuple[str, ...], **parts: object) -> object:
    return tuple(parts[name] for name in names)


def fields_of(kind: type) -> list[str]:
    """The parameters of its constructor, or the names that a dictionary of it has."""
    if issubclass(kind, dict):
        return [*getattr(kind, "__annotations__", {})]
    signature = safe_call(lambda: inspect.signature(kind)).value
    return [] if signature is None else [*signature.parameters]


def classes_of(function: Callable[..., Any], past: str) -> list[type]:
    """The classes of its file that its cache may be of: stated, named so, or with all that its code reads of it."""
    written = written_of(function)
    space, read = getattr(written, "__globals__", {}), reads_of(function, past).attributes
    stated = [p for p in signature_of(function).parameters.values() if p.name == past]
    named = cache_classes(space, stated, written)
    own = [x for x in space.values() if isinstance(x, type) and x.__module__ == written.__module__ and x not in named]
    fitting = [kind for kind in own if read and read <= _names_in(kind) and not issubclass(kind, nn.Module)]
    return [*named, *fitting]


def makers_of(kind: type) -> list[Callable[..., object]]:
    """Its methods that make an empty one."""
    methods = {name: each for name, each in vars(kind).items() if isinstance(each, classmethod | staticmethod)}
    return [getattr(kind, name) for name in methods if words_of(name) & (MAKING | STARTING)]


def _names_in(kind: type) -> set[str]:
    """The names that its objects may have."""
    stated = {name for each in kind.__mro__ for name in getattr(each, "__annotations__", {})}
    code = getattr(getattr(kind, "__init__", None), "__code__", None)
    return {*dir(kind), *stated, *(code.co_names if code is not None else ())}


def moved_by_others(function: Callable[..., Any], past: str) -> bool:
    """Whether callers count the tokens of a cache, by what the function says, or by a method of its class."""
    counts = frozenset(name for name in reads_of(function, past).attributes if part_of(name) is Part.COUNT)
    methods = [
        each
        for kind in classes_of(function, past)
        for name, each in vars(kind).items()
        if inspect.isfunction(each) and not (name == "__init__" or words_of(name) & RESETTING)
    ]
    return says(function, "caller") or any(stores(each, counts) for each in methods)
