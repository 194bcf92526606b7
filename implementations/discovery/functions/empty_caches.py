"""Empty caches, as functions take them: of what makes them in their file, dictionaries, lists, and room for tokens."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from attention_conformance.implementations.adapters.jax_op import is_jax
from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.functions.cache_names import makes_cache
from attention_conformance.implementations.discovery.functions.fed_caches import Empty, Taken
from attention_conformance.implementations.discovery.modules.cache_forms import built_empty, cache_classes
from attention_conformance.implementations.discovery.modules.own_cache import ROOM
from attention_conformance.implementations.discovery.signatures import signature_of

OF_WIDTH = ("dim", "d", "D", "width", "size")
"""Names of the components of a head, next to those that say so."""
NAMES = (("k", "v"), ("key", "value"), ("keys", "values"))
"""Of the buffers in a dictionary."""


def empties(function: Callable[..., Any], past: tuple[str, ...]) -> Iterator[tuple[Empty, bool]]:
    """What may be given as an empty cache that the calls change, and whether calls may return another one as well."""
    written = inspect.unwrap(as_written(function))  # type: ignore[arg-type]  # whatever it is
    space, signature = getattr(written, "__globals__", {}), signature_of(function)
    if len(past) > 1:
        return
    makers = [each for name, each in space.items() if isinstance(each, FunctionType) and makes_cache(name)]
    for each in makers:
        yield partial(_made, each, signature), True
    for kind in cache_classes(space, signature.parameters.values(), written):
        yield partial(_made, kind, signature), False
    yield lambda *_: {}, False
    yield lambda *_: [], False


def _made(maker: Callable[..., object], user: inspect.Signature, inputs: Sequence[Any], taken: Taken) -> object:
    """An empty cache of a class, or of a function that makes one.

    Raises:
        ValueError: what it needs is unknown.
    """
    key = inputs[min(1, len(inputs) - 1)]
    sizes = {letter: key.shape[axis] for letter, axis in taken.sizes.items()}
    heads = sizes.get("H", 1)
    x = _zeros(key, (sizes.get("B", 1), 1, sizes.get("E", heads * sizes.get("D", 1))))
    known = SimpleNamespace(**dict.fromkeys(OF_WIDTH, sizes["D"]) if "D" in sizes else {})
    vars(known).update({p.name: p.default for p in user.parameters.values() if type(p.default) is int})
    made = built_empty(maker, known, x, heads, max(ROOM, _longest(inputs, taken)))
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
    return _empty_for(max(ROOM, _longest(inputs, taken)), inputs, taken)


def no_tokens(inputs: Sequence[Any], taken: Taken) -> tuple[Any, Any]:
    """Keys and values of no tokens."""
    return _empty_for(0, inputs, taken)


def _empty_for(tokens: int, inputs: Sequence[Any], taken: Taken) -> tuple[Any, Any]:
    axes = [*taken.tokens.values()]
    key, value = (
        _zeros(each, (*each.shape[:axis], tokens, *each.shape[axis + 1 :]))
        for each, axis in zip(inputs[1:], axes[1:], strict=True)
    )
    return key, value


def _longest(inputs: Sequence[Any], taken: Taken) -> int:
    return max(int(each.shape[axis]) for each, axis in zip(inputs, taken.tokens.values(), strict=True))


def _zeros(like: Any, shape: tuple[int, ...]) -> Any:
    if isinstance(like, torch.Tensor):
        return like.new_zeros(shape)
    return (sys.modules["jax"].numpy if is_jax(like) else np).zeros(shape, like.dtype)
