"""Functions that have to be given a cache: an empty one in each call, or all tokens one after another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.cache_names import cache_groups
from attention_conformance.implementations.discovery.functions.empty_caches import empties
from attention_conformance.implementations.discovery.functions.fed_caches import Taken, check_bits, cut
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.several_needed import as_array
from attention_conformance.implementations.discovery.modules.cache_forms import place_values
from attention_conformance.implementations.discovery.modules.own_cache import Place, joined
from attention_conformance.implementations.discovery.probe import HALF, near, parts_of, shape_of
from attention_conformance.implementations.discovery.signatures import dispensable, positional, required, signature_of

LAYOUTS = (
    ((2, 3, 5, 4), "BHLD"),
    ((2, 5, 3, 4), "BLHD"),
    ((2, 5, 4), "BLE"),
    ((3, 5, 4), "HLD"),
    ((5, 3, 4), "LHD"),
    ((5, 4), "LD"),
)
"""Shapes of inputs, and their axes."""
TOKENS = 5


@dataclass(frozen=True)
class NeededCache:
    """A function that is given an empty cache.

    Attributes:
        function: it.
        past: its parameter for the cache.
        empty: makes an empty one; None: it takes None.
        axes: of its inputs.
        places: what states where its tokens lie, by the parameter that takes it.
        single: whether it takes one token at a time, so that it is called for each.
        squeezed: whether that token has no axis of its own.
        part: where in an answer the next cache is; 0: the call has changed the one that it was given.
    """

    function: Callable[..., Any]
    past: str
    empty: Callable[..., Any] | None
    axes: str
    places: Mapping[str, Place]
    single: bool = False
    squeezed: bool = False
    part: int = 0

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function)
        for name in (self.past, *self.places):
            own = dispensable(own, name)
        return own.replace(parameters=[p for p in own.parameters.values() if p.name not in self.places])

    @property
    def about(self) -> str:
        """For a note."""
        each = "is called for one token after another" if self.single else "is given all tokens"
        return f"it {each}, with an empty cache in {self.past!r} before the first"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer.

        Raises:
            ValueError: it takes a token at a time, and there is none, or another number of keys than of queries; its
                cache rounds what it is given.
        """
        axis = self.axes.index("L")
        tokens = query.shape[axis]
        samples = query.shape[self.axes.index("B")] if "B" in self.axes else 1
        cache = options.pop(self.past, None)
        taken = Taken(dict.fromkeys(range(3), axis), axis, _sizes(self.axes))
        if cache is None and self.empty is not None:
            cache = self.empty([query, key, value], taken)
        if not self.single:
            placed = {name: _as(query, place(samples, 0, tokens)) for name, place in self.places.items()}
            answer = self.function(query, key, value, **{**options, **placed, self.past: cache})
            check_bits(cache, key)
            return answer
        if not tokens or key.shape[axis] != tokens:
            raise ValueError(f"it takes a token at a time, {tokens} queries with {key.shape[axis]} keys")
        outputs = []
        for at in range(tokens):
            one = [self._token(each, axis, at) for each in (query, key, value)]
            placed = {name: _as(query, place(samples, at, at + 1)) for name, place in self.places.items()}
            output, *others = parts_of(self.function(*one, **{**options, **placed, self.past: cache}))
            cache = others[self.part - 1] if self.part else cache
            check_bits(cache, key)
            outputs.append(output[(slice(None),) * axis + (None,)] if self.squeezed else output)
        return joined(outputs, axis)

    def _token(self, each: Any, axis: int, at: int) -> Any:
        one = cut(each, axis, at, at + 1)
        return one[(slice(None),) * axis + (0,)] if self.squeezed else one

    def answers(self, x: Any) -> bool:
        """Whether all tokens are answered, not all alike."""
        output = safe_call(partial(self._output, x, x, x)).value
        if output is None or shape_of(output) != tuple(x.shape) or not np.isfinite(output).all():
            return False
        rows = np.moveaxis(output, self.axes.index("L"), 0)
        return not near(rows[0], rows[-1], "float32")

    def attends(self, x: Any) -> bool:
        """Whether the last token sees the one before it, and each head its own values alone."""
        at = [slice(None)] * x.ndim
        at[self.axes.index("L")] = TOKENS - 2  # type: ignore[call-overload]
        heads = self.axes.find("H")
        if heads >= 0:
            at[heads] = 0  # type: ignore[call-overload]
        other = _moved(x, tuple(at))
        one, two = (safe_call(partial(self._output, x, x, each)).value for each in (x, other))
        if one is None or two is None:
            return False
        changed = np.moveaxis(np.abs(one - two) > HALF, self.axes.index("L"), 0)
        own = np.delete(changed, 0, heads + (heads < self.axes.index("L"))) if heads >= 0 else np.zeros(1, bool)
        earlier = self.single and changed[: TOKENS - 2].any()
        return bool(changed[-1].any()) and not earlier and not own.any()

    def _output(self, *inputs: Any) -> Any:
        return as_array(parts_of(self(*inputs))[0])


def _sizes(axes: str) -> dict[str, int]:
    return {axis: at for at, axis in enumerate(axes) if axis != "L"}


def _as(like: Any, place: object) -> object:
    """Places as arrays of the kind of the inputs."""
    return place.numpy() if hasattr(place, "numpy") and not hasattr(like, "new_zeros") else place


def _moved(x: Any, at: tuple[Any, ...]) -> Any:
    moved = np.array(as_array(x))
    moved[at] += 1.0
    return x.new_tensor(moved) if hasattr(x, "new_tensor") else moved.astype(x.dtype)


def with_needed_cache(function: Callable[..., Any]) -> NeededCache | None:
    """The function, given an empty cache in each call; None where it needs none, or no call shows how."""
    signature = safe_call(lambda: signature_of(function)).value
    inputs = [] if signature is None else [p.name for p in positional(signature)[:3]]
    needed = [] if signature is None else [p for p in signature.parameters.values() if required(p)]
    left = [p.name for p in needed if p.name not in inputs]
    pasts = [group for group in cache_groups(function) if {*group} & {*left}]
    if len(pasts) != 1 or len(pasts[0]) != 1 or len(inputs) < 3:
        return None
    places = {name: place_values(name) for name in left if name != pasts[0][0]}
    if not all(places.values()):
        return None
    chosen = [dict(zip(places, each, strict=True)) for each in product(*places.values())]
    return next((made for each in chosen for made in _tried(function, pasts[0][0], each)), None)


def _tried(function: Callable[..., Any], past: str, places: Mapping[str, Place]) -> Iterator[NeededCache]:
    """The function in the layouts and with the empty caches with which it answers."""
    several: list[Callable[..., Any] | None] = [*(empty for empty, _ in empties(function, (past,))), None]
    for single, empty in product((False, True), several):
        for shape, axes in LAYOUTS:
            for squeezed, part in product((False, True), (0, 1, 2)) if single else ((False, 0),):
                made = NeededCache(function, past, empty, axes, places, single, squeezed, part)
                if any(made.answers(x) and made.attends(x) for x in of_each_kind(shape)):
                    yield made
