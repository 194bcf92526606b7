"""Empty caches, as functions take them: of what makes them in their file, dictionaries, lists, and room for tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

from attention_conformance.implementations.discovery.functions.cache_names import makes_cache
from attention_conformance.implementations.discovery.functions.cache_reads import written_of
from attention_conformance.implementations.discovery.functions.fed_caches import Empty, Taken, longest, zeros
from attention_conformance.implementations.discovery.functions.object_caches import (
    classes_of,
    makers_of,
    object_caches,
)
from attention_conformance.implementations.discovery.modules.cache_forms import built_empty
from attention_conformance.implementations.discovery.modules.own_cache import ROOM
from attention_conformance.implementations.discovery.signatures import signature_of

OF_WIDTH = ("dim", "d", "D", "width", "size", "features")
"""Names of the components of a head, next to those that say so."""
OF_HEADS, OF_TOKENS = ("H", "h", "n_head", "nh"), ("S", "T", "L", "N")
"""Letters for its heads, and for the tokens of a cache."""
NAMES = (("k", "v"), ("key", "value"), ("keys", "values"))
"""Of the buffers in a dictionary."""


def empties(function: Callable[..., Any], past: tuple[str, ...]) -> Iterator[tuple[Empty, bool, bool]]:
    """What may be given as an empty cache that the calls change.

    With each: whether calls may return another one as well, and whether its form is certain.
    """
    if len(past) > 1:
        return
    space, signature = getattr(written_of(function), "__globals__", {}), signature_of(function)
    makers: list[Callable[..., object]] = [
        each for name, each in space.items() if isinstance(each, FunctionType) and makes_cache(name)
    ]
    kinds = classes_of(function, past[0])
    makers += [method for kind in kinds for method in makers_of(kind)]
    for maker in makers:
        yield partial(_made, maker, signature), True, False
    for kind in kinds:
        yield partial(_made, kind, signature), True, True
    yield lambda *_: {}, False, True
    yield lambda *_: [], False, True
    yield from ((each, True, True) for each in object_caches(function, past))


def _made(maker: Callable[..., object], user: inspect.Signature, inputs: Sequence[Any], taken: Taken) -> object:
    """An empty cache of a class, or of a function that makes one.

    Raises:
        ValueError: what it needs is unknown, or keys and values differ, for which it has one width.
    """
    if len({tuple(each.shape) for each in inputs[-2:]}) > 1:
        raise ValueError("an empty cache is made with one width for keys and values")
    key = inputs[min(1, len(inputs) - 1)]
    sizes = {letter: key.shape[axis] for letter, axis in taken.sizes.items()}
    heads = sizes.get("H", 1)
    x = zeros(key, (sizes.get("B", 1), 1, sizes.get("E", heads * sizes.get("D", 1))))
    room = max(ROOM, longest(inputs, taken))
    known = SimpleNamespace(**dict.fromkeys(OF_HEADS, heads), **dict.fromkeys(OF_TOKENS, room))
    vars(known).update(dict.fromkeys(OF_WIDTH, sizes["D"]) if "D" in sizes else {})
    vars(known).update({p.name: p.default for p in user.parameters.values() if type(p.default) is int})
    made = built_empty(maker, known, x, heads, room)
    if made is None:
        raise ValueError("it is unknown how an empty cache is made")
    return made


def buffers(past: tuple[str, ...]) -> Iterator[Empty]:
    """Room for keys and values that the first call is given."""
    yield _room
    if len(past) == 1:
        yield lambda inputs, taken: [*_room(inputs, taken)]
        for names in NAMES:
            yield partial(_named_room, names)


def _named_room(names: tuple[str, str], inputs: Sequence[Any], taken: Taken) -> object:
    return dict(zip(names, _room(inputs, taken), strict=True))


def _room(inputs: Sequence[Any], taken: Taken) -> tuple[Any, Any]:
    """Zeros for more keys and values than usually come, and for all that do."""
    return _empty_for(max(ROOM, longest(inputs, taken)), inputs, taken)


def no_tokens(inputs: Sequence[Any], taken: Taken) -> tuple[Any, Any]:
    """Keys and values of no tokens."""
    return _empty_for(0, inputs, taken)


def _empty_for(tokens: int, inputs: Sequence[Any], taken: Taken) -> tuple[Any, Any]:
    axes = [*taken.tokens.values()]
    key, value = (
        zeros(each, (*each.shape[:axis], tokens, *each.shape[axis + 1 :]))
        for each, axis in zip(inputs[1:], axes[1:], strict=True)
    )
    return key, value
