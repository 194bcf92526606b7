"""Functions that have to be given a cache: an empty one in each call, or all tokens one after another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.causal_names import says_causal
from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.functions.cache_names import cache_groups, takes_several_tokens
from attention_conformance.implementations.discovery.functions.cache_states import Following, State
from attention_conformance.implementations.discovery.functions.empty_caches import buffers, empties, no_tokens
from attention_conformance.implementations.discovery.functions.fed_caches import Taken, check_bits, cut, several_in
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.object_caches import moved_by_others
from attention_conformance.implementations.discovery.functions.several_needed import as_array
from attention_conformance.implementations.discovery.functions.stored_axes import OTHERWISE, in_axes
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
MOST_PARTS = 2
"""Parts after the output in which the next cache is looked for."""


@dataclass(frozen=True)
class NeededCache:
    """A function that is given an empty cache.

    Attributes:
        function: it.
        past: its parameters for the cache: one for all of it, or two for keys and values.
        empty: makes an empty one; None: it takes None.
        axes: of its inputs.
        places: what states where its tokens lie, by the parameter that takes it.
        single: whether it takes one token at a time, so that it is called for each.
        squeezed: whether that token has no axis of its own.
        part: where in an answer the next cache begins; 0: the call has changed the one that it was given.
        promised: whether its text promises that no token sees a later one.
        output: the axes of its output, E for the widths of all heads side by side; empty: those of its inputs.
    """

    function: Callable[..., Any]
    past: tuple[str, ...]
    empty: Callable[..., Any] | None
    axes: str
    places: Mapping[str, Place]
    single: bool = False
    squeezed: bool = False
    part: int = 0
    promised: bool = False
    output: str = ""

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function)
        for name in (*self.past, *self.places):
            own = dispensable(own, name)
        return own.replace(parameters=[p for p in own.parameters.values() if p.name not in self.places])

    @property
    def about(self) -> str:
        """For a note."""
        each = "is called for one token after another" if self.single else "is given all tokens"
        promise = ", and promises that no token sees a later one" if self.promised else ""
        laid = f"; its output is ({', '.join(self.output).replace('E', 'H * D')})" if self.output else ""
        return f"it {each}, with an empty cache in {' and '.join(map(repr, self.past))} before the first{promise}{laid}"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer.

        Raises:
            ValueError: it takes a token at a time, and there is none, or another number of keys than of queries; its
                cache rounds what it is given.
        """
        axis = self.axes.index("L")
        tokens = query.shape[axis]
        cache = [options.pop(name, None) for name in self.past]
        if cache[0] is None and self.empty is not None:
            cache = self._parts(self._made(query, key, value))
        if not self.single:
            answer = self.function(query, key, value, **{**options, **self._held(query, cache, 0, tokens)})
            check_bits(cache, key)
            return self._with_usual_axes(answer, query, value)
        if not tokens or key.shape[axis] != tokens:
            raise ValueError(f"it takes a token at a time, {tokens} queries with {key.shape[axis]} keys")
        outputs = []
        for at in range(tokens):
            one = [self._token(each, axis, at) for each in (query, key, value)]
            answer = self.function(*one, **{**options, **self._held(query, cache, at, at + 1)})
            output, *others = parts_of(self._with_usual_axes(answer, one[0], value))
            cache = [*self._parts(self._returned(others))] if self.part else cache
            check_bits(cache, key)
            outputs.append(output[(slice(None),) * axis + (None,)] if self.squeezed else output)
        return joined(outputs, axis)

    def _with_usual_axes(self, answer: Any, query: Any, value: Any) -> Any:
        """The answer, its output in the axes of the inputs."""
        if not self.output:
            return answer
        output, *others = parts_of(answer)
        axes, own = map(self._of_call, (self.axes, self.output))
        sizes = {**dict(zip(axes, query.shape, strict=True)), "D": value.shape[-1]}
        laid = in_axes(output, own, axes, sizes)
        return (laid, *others) if others or isinstance(answer, tuple | list) else laid

    def output_axes(self, x: Any) -> str:
        """Those of its output, as its shape shows them; empty where they are those of its inputs, or unknown ones."""
        sizes = {**dict(zip(self.axes, x.shape, strict=True)), **({"L": 1} if self.single else {})}
        sizes["E"] = sizes.get("H", 1) * sizes.get("D", 1)
        answer = safe_call(partial(self._first_answer, x)).value
        shape = None if answer is None else shape_of(parts_of(answer)[0])
        known = {own: tuple(sizes[axis] for axis in self._of_call(own)) for own in OTHERWISE.get(self.axes, ())}
        return next((own for own, each in known.items() if shape == each), "")

    def _of_call(self, axes: str) -> str:
        return axes.replace("L", "") if self.squeezed else axes

    def _made(self, *inputs: Any) -> Any:
        """An empty cache."""
        axis = self.axes.index("L")
        assert self.empty is not None
        return self.empty([*inputs], Taken(dict.fromkeys(range(3), axis), axis, _sizes(self.axes)))

    def _held(self, query: Any, cache: Sequence[Any], start: int, stop: int) -> dict[str, Any]:
        """The cache, and where tokens lie."""
        samples = query.shape[self.axes.index("B")] if "B" in self.axes else 1
        placed = {name: _as(query, place(samples, start, stop)) for name, place in self.places.items()}
        return {**placed, **dict(zip(self.past, cache, strict=True))}

    def _parts(self, cache: Any) -> list[Any]:
        """What each parameter for the cache is given."""
        return [*cache] if len(self.past) > 1 else [cache]

    def _returned(self, others: Sequence[Any]) -> Any:
        return several_in(others, self.part, len(self.past)) if len(self.past) > 1 else others[self.part - 1]

    def _token(self, each: Any, axis: int, at: int) -> Any:
        one = cut(each, axis, at, at + 1)
        return one[(slice(None),) * axis + (0,)] if self.squeezed else one

    def parts(self, x: Any) -> dict[int, bool]:
        """Where the next cache may begin in the answer to a first call, and whether it surely does; none: it raises."""
        return safe_call(partial(self._parts_seen, x)).value or {}

    def _parts_seen(self, x: Any) -> dict[int, bool]:
        cache = self._first_cache(x)
        before = State.of(cache[0])
        others = parts_of(self._first_answer(x, cache))[1 : 1 + MOST_PARTS]
        found = {part: before.follows(self.empty, cache[0], each) for part, each in enumerate([cache[0], *others])}
        if len(self.past) > 1 or self.empty is None:
            found = dict.fromkeys(found, Following.PERHAPS)
        seen = {part: sure is Following.SURE for part, sure in found.items() if sure is not Following.ANOTHER}
        return seen if self.single else {0: any(seen.values())} if seen else {}

    def _first_cache(self, x: Any) -> list[Any]:
        return [None] * len(self.past) if self.empty is None else self._parts(self._made(x, x, x))

    def _first_answer(self, x: Any, cache: Sequence[Any] | None = None) -> Any:
        """What it returns for the first token where it takes one at a time, for all of them otherwise."""
        axis = self.axes.index("L")
        one = self._token(x, axis, 0) if self.single else x
        held = self._held(x, cache or self._first_cache(x), 0, 1 if self.single else x.shape[axis])
        return self.function(one, one, one, **held)

    def answers(self, x: Any) -> bool:
        """Whether all tokens are answered, not all alike."""
        output = safe_call(partial(self._output, x, x, x)).value
        if output is None or shape_of(output) != tuple(x.shape) or not np.isfinite(output).all():
            return False
        rows = np.moveaxis(output, self.axes.index("L"), 0)
        return not near(rows[0], rows[-1], "float32")

    def attends(self, x: Any) -> bool:
        """Whether the last token sees the one before it, and each head its own values alone."""
        heads = self.axes.find("H")
        changed = self._changed(x, TOKENS - 2)
        if changed is None:
            return False
        own = np.delete(changed, 0, heads + (heads < self.axes.index("L"))) if heads >= 0 else np.zeros(1, bool)
        earlier = self.single and changed[: TOKENS - 2].any()
        return bool(changed[-1].any()) and not earlier and not own.any()

    def is_fed(self, x: Any) -> bool:
        """Whether tokens have rows of their own, the last one a finite one in which it or the token before it is seen.

        That is less than is seen where it is right: the first rows may be NaN, and tokens may not see each other.
        """
        output = safe_call(partial(self._output, x, x, x)).value
        if output is None or shape_of(output) != tuple(x.shape):
            return False
        last = np.moveaxis(output, self.axes.index("L"), 0)[-1]
        own = (self._changed(x, at) for at in (TOKENS - 1, TOKENS - 2))
        return bool(np.isfinite(last).all()) and any(self._moves_last(each) for each in own)

    def _moves_last(self, changed: Any) -> bool:
        """Whether the last token changes, those before the last two do not, and each head with its own values alone."""
        if changed is None:
            return False
        heads = self.axes.find("H")
        own = np.delete(changed, 0, heads + (heads < self.axes.index("L"))) if heads >= 0 else np.zeros(1, bool)
        return bool(changed[-1].any()) and not changed[: TOKENS - 2].any() and not own.any()

    def hides_later(self, x: Any) -> bool:
        """Whether a token before it does not see the one before the last."""
        changed = self._changed(x, TOKENS - 2)
        return changed is not None and not changed[: TOKENS - 2].any()

    def _changed(self, x: Any, token: int) -> Any:
        """What changes, tokens first, with the value of a token, that of the first head where there are heads."""
        at = [slice(None)] * x.ndim
        at[self.axes.index("L")] = token  # type: ignore[call-overload]
        if "H" in self.axes:
            at[self.axes.index("H")] = 0  # type: ignore[call-overload]
        one, two = (safe_call(partial(self._output, x, x, each)).value for each in (x, _moved(x, tuple(at))))
        if one is None or two is None:
            return None
        return np.moveaxis(np.abs(one - two) > HALF, self.axes.index("L"), 0)

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
    """The function, given an empty cache in each call; None where it needs none, or no call shows how.

    One whose text speaks of causality, and whose tokens see later ones, takes one token at a time, or breaks a promise
    where it states that several come.
    """
    signature = safe_call(lambda: signature_of(function)).value
    inputs = [] if signature is None else [p.name for p in positional(signature)[:3]]
    needed = [] if signature is None else [p for p in signature.parameters.values() if required(p)]
    left = [p.name for p in needed if p.name not in inputs]
    pasts = [group for group in cache_groups(function) if {*group} & {*left}]
    if len(pasts) != 1 or len(inputs) < 3:
        return None
    places = {name: place_values(name) for name in left if name not in pasts[0]}
    if not all(places.values()):
        return None
    chosen = [dict(zip(places, each, strict=True)) for each in product(*places.values())]
    several = (made for each in chosen for made in _tried(function, pasts[0], each))
    made, x = next(several, (None, None))
    if made is None or made.single or not says_causal(as_written(function)) or made.hides_later(x):
        return made
    if takes_several_tokens(function):
        return replace(made, promised=True)
    return next((other for other, _ in several if other.single), made)


def _tried(
    function: Callable[..., Any], past: tuple[str, ...], places: Mapping[str, Place]
) -> Iterator[tuple[NeededCache, Any]]:
    """The function in the layouts and with the empty caches with which it answers, and an input of each."""
    rooms = [no_tokens, *(buffers(past) if places else ())]
    several: list[Callable[..., Any] | None] = [*(empty for empty, *_ in empties(function, past)), *rooms, None]
    fed: list[tuple[NeededCache, Any]] = []
    for single, empty in product((False, True), several):
        for shape, axes in LAYOUTS:
            for squeezed, x in product((False, True) if single else (False,), of_each_kind(shape)):
                usual = NeededCache(function, past, empty, axes, places, single, squeezed)
                parts = usual.parts(x)
                laid = replace(usual, output=usual.output_axes(x)) if parts else usual
                for part, sure in parts.items():
                    made = replace(laid, part=part)
                    if made.answers(x) and made.attends(x):
                        fed = []
                        yield made, x
                    elif sure and single and not fed and made.is_fed(x):
                        fed = [(made, x)]
    yield from fed if not moved_by_others(function, past[0]) else ()
