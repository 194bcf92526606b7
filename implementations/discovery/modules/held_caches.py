"""Plain classes of query, key and value in heads that hold a cache of buffers, as functions of whole sequences."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.jax_op import library_of
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.extras import Chosen
from attention_conformance.implementations.discovery.functions.fed_caches import with_inner
from attention_conformance.implementations.discovery.modules.constructor_names import Size, size_of
from attention_conformance.implementations.discovery.modules.held_arrays import arrays_in, method_of
from attention_conformance.implementations.discovery.probe import first_part, shape_of
from attention_conformance.implementations.discovery.signatures import is_variadic, positional, required, role
from attention_conformance.implementations.discovery.vocabulary import INPUTS, words_of
from attention_conformance.spec.problem import Array

IN_PIECES = "in pieces through the cache that it holds"
SAMPLES, TOKENS = (
    {"batch", "bsz", "b", "bs", "samples"},
    {"len", "length", "seq", "seqlen", "tokens", "capacity", "room"},
)
WIDTHS = {"dim", "d", "width", "size"}
"""Words in the names of its sizes, next to those that are known elsewhere."""
SHOWN = (2, 5, 3, 8)
"""Samples, tokens, heads and their width, with which it is looked at."""
ROOM = 32
"""Its buffers have room for a multiple of so many tokens, some of which never come: JAX compiles for fewer shapes."""
FIRST, LEAST = 2, 5
"""Tokens of the first piece, and of a sequence that is cut: the second has all others but one, as JAX traces each."""


@dataclass(frozen=True)
class Holder:
    """Calls a new object for each sequence.

    Attributes:
        kind: the class.
        method: that is called.
        sizes: what each parameter of its constructor counts: 0 samples, 1 tokens, 2 heads, 3 their width.
        tokens: the axis of tokens, 1 or 2.
    """

    kind: type
    method: str
    sizes: Mapping[str, int]
    tokens: int = 1

    def whole(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """All tokens at once."""
        return self._made(query, key, value)(query, key, value, **options)

    def in_pieces(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """In three pieces; all tokens at once where something else is given, as a mask of all tokens."""
        count = key.shape[self.tokens]
        if any(hasattr(each, "shape") for each in options.values()) or count < LEAST:
            return self.whole(query, key, value, **options)
        call, rows = self._made(query, key, value), list[Any]()
        for start, stop in pairwise((0, FIRST, count - 1, count)):
            piece = (slice(None),) * self.tokens + (slice(start, stop),)
            rows.append(first_part(call(query[piece], key[piece], value[piece], **options)))
        if isinstance(query, torch.Tensor):
            return torch.cat(rows, self.tokens)
        return (np if isinstance(query, np.ndarray) else library_of(query)).concatenate(rows, self.tokens)

    def _made(self, query: Any, key: Any, value: Any) -> Callable[..., Any]:
        """The call of a new object, for inputs of such sizes.

        Raises:
            ValueError: there are not as many queries as keys, or values have another width.
        """
        if query.shape != key.shape or key.shape != value.shape:
            raise ValueError("what keeps the keys of each query has as many of both, and values as wide")
        room = (key.shape[self.tokens] // ROOM + 1) * ROOM
        counts = (key.shape[0], room, key.shape[3 - self.tokens], key.shape[3])
        own = {"dtype": key.dtype} if "dtype" in inspect.signature(self.kind).parameters else {}
        made = self.kind(**{name: counts[at] for name, at in self.sizes.items()}, **own)
        return cast("Callable[..., Any]", made if isinstance(made, nn.Module) else getattr(made, self.method))


def with_held_cache(kind: type) -> Callable[..., Any] | None:
    """The class as a function that begins a sequence in each call; None where it is none of these."""
    name = method_of(kind)
    method: Any = getattr(kind, name, None)
    inputs = positional(inspect.signature(method))[1:4] if inspect.isfunction(method) else []
    sizes = _sizes(kind)
    if issubclass(kind, nn.Module) or [role(p.name) for p in inputs] != [*INPUTS] or sizes is None:
        return None
    holders = (Holder(kind, name, sizes, tokens) for tokens in (1, 2))
    if not _holds_zeros(kind, sizes) or (found := next((x for x in holders if _keeps(x)), None)) is None:
        return None

    def call(query: Any, key: Any, value: Any, **options: Any) -> Any:
        return found.whole(query, key, value, **options)

    named = cast(Any, update_wrapper(call, kind, assigned=("__name__", "__module__", "__doc__"), updated=()))
    named.__signature__ = inspect.Signature([*inspect.signature(method).parameters.values()][1:])
    named.in_pieces = found.in_pieces
    return cast("Callable[..., Any]", named)


def _sizes(kind: type) -> dict[str, int] | None:
    """What each parameter counts that its constructor needs; None where one is unknown, or none counts tokens."""
    signature = safe_call(partial(inspect.signature, kind)).value
    needed = [] if signature is None else [p for p in signature.parameters.values() if not is_variadic(p)]
    found = {p.name: counted(p.name) for p in needed if required(p) or counted(p.name) == 1}
    counts = [each for each in found.values() if each is not None]
    return dict(zip(found, counts, strict=True)) if len(counts) == len(found) and 1 in counts else None


def counted(name: str) -> int | None:
    """What a parameter of this name counts, by its number in `SHOWN`; None where that is something else."""
    size, words = size_of(name), words_of(name)
    if size is Size.SAMPLES or words & SAMPLES:
        return 0
    if size is Size.LENGTH or words & TOKENS:
        return 1
    if size is Size.HEADS:
        return 2
    return 3 if size is Size.HEAD_WIDTH or words & WIDTHS else None


def _holds_zeros(kind: type, sizes: Mapping[str, int]) -> bool:
    """Whether all arrays of a new object are buffers without any number yet, at least two."""
    made = safe_call(lambda: kind(**{name: SHOWN[at] for name, at in sizes.items()})).value
    arrays = [] if made is None else arrays_in(made)
    return len(arrays) > 1 and all(each.ndim > 2 and not bool(each.any()) for each in arrays)


def _keeps(holder: Holder) -> bool:
    """Whether it answers in this layout, the same in each new object and in the dtype of its inputs."""
    return any(_answers(holder, x) for x in _inputs(holder.tokens))


def _inputs(tokens: int) -> Iterator[Any]:
    x: Array = np.random.default_rng(0).standard_normal(SHOWN).astype(np.float32)
    laid = np.ascontiguousarray(x if tokens == 1 else x.swapaxes(1, 2))
    yield from (torch.from_numpy(laid), laid)


def _answers(holder: Holder, x: Any) -> bool:
    one, other = (safe_call(lambda: first_part(holder.whole(x, x, x))).value for _ in range(2))
    if one is None or other is None or shape_of(one) != tuple(x.shape) or "float32" not in str(one.dtype):
        return False
    return bool(np.array_equal(np.asarray(one), np.asarray(other)))


def with_pieces(made: Implementation, function: Callable[..., Any]) -> Implementation:
    """The candidate of such a function, given its tokens in pieces, too, where no token sees a later one."""
    run: Any = made.run
    call = getattr(getattr(run, "function", None), "function", None)
    if call is None or not made.claims.premises.causal or not hasattr(function, "in_pieces"):
        return made
    in_pieces = with_inner(call, lambda inner: update_wrapper(_pieces_of(function), inner))
    pieces = replace(run, function=Chosen(in_pieces), extras=())
    return replace(made, alternatives={**made.alternatives, IN_PIECES: pieces})


def _pieces_of(function: Any) -> Callable[..., Any]:
    def call(query: Any, key: Any, value: Any, **options: Any) -> Any:
        return function.in_pieces(query, key, value, **options)

    return call
