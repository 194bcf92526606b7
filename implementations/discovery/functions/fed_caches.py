"""Functions that are fed a sequence in pieces, each with the cache that the one before it left or returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from attention_conformance.implementations.adapters.jax_op import library_of
from attention_conformance.implementations.discovery.functions.answers import OutputFirst
from attention_conformance.implementations.discovery.functions.cache_states import State, arrays_in
from attention_conformance.implementations.discovery.modules.own_cache import (
    LEAST,
    Place,
    cuts_of,
    is_array,
    joined,
    returned,
)
from attention_conformance.implementations.discovery.probe import parts_of
from attention_conformance.implementations.discovery.signatures import signature_of

Parameter = int | str
"""Where an input comes: its place among the positional arguments, or its name."""
INPUTS = 3


class NarrowerError(ValueError):
    """The cache holds numbers of fewer bits than the inputs, so that pieces are rounded where the whole is not."""


@dataclass(frozen=True)
class Taken:
    """How a function takes its inputs, in whatever layout.

    Attributes:
        tokens: the axis of the tokens of each input, by where it comes.
        output: that of its output.
        sizes: the axes of its keys that are samples, heads, and components of one head or of all: B, H, D and E.
    """

    tokens: Mapping[Parameter, int]
    output: int
    sizes: Mapping[str, int]


@dataclass
class Recorder:
    """A function of whose last call the arguments and the answer are kept."""

    function: Callable[..., Any]
    given: dict[Parameter, Any] = field(default_factory=dict)
    answer: Any = None

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        """The function's answer."""
        self.given, self.answer = by_place(arrays, options), None
        self.answer = self.function(*arrays, **options)
        return self.answer

    def taken(self, tokens: int, extents: Mapping[str, int]) -> Taken | None:
        """How it was given so many tokens; None where the shapes do not show that."""
        axes = {place: axis for place, each in self.given.items() if (axis := axis_of(tokens, each)) is not None}
        output = axis_of(tokens, parts_of(self.answer)[0]) if parts_of(self.answer) else None
        if output is None or not axes or len(axes) > INPUTS:
            return None
        key = self.given[[*axes][min(1, len(axes) - 1)]]
        sizes = {letter: axis for letter, n in extents.items() if (axis := axis_of(n, key)) is not None}
        return Taken(axes, output, sizes)


def by_place(arrays: Sequence[Any], options: Mapping[str, Any]) -> dict[Parameter, Any]:
    """What a call is given, by where it comes."""
    given: dict[Parameter, Any] = dict(enumerate(arrays))
    given.update(options.items())
    return given


def axis_of(extent: int, array: Any) -> int | None:
    """The one axis of this extent; None where there is none, or several."""
    shape = tuple(array.shape) if is_array(array) else ()
    return shape.index(extent) if shape.count(extent) == 1 else None


Empty = Callable[[Sequence[Any], Taken], object]
"""Makes an empty cache for the first piece, whose inputs these are."""


@dataclass(frozen=True)
class Fed:
    """A function that gets its tokens in pieces.

    Attributes:
        function: it.
        taken: how it takes its inputs.
        past: its parameters for the cache, or for keys and values.
        wanted: what makes it return or use one.
        sizes: of the pieces, over and over.
        empty: makes an empty cache that the calls change; None: they return one, and the first gets none.
        places: what states where a piece lies, by the parameter that takes it.
        part: where in an answer the cache begins; 0: where keys and values of all tokens so far are.
        last: whether the rows of the last piece alone come of it.
        alike: whether its values have to be as wide as its keys.
        widest: bytes of a number with which it was seen to be right: a cache may have no more.
        strict: whether what cannot be cut raises, and is not given at once.
    """

    function: Callable[..., Any]
    taken: Taken
    past: tuple[str, ...]
    wanted: Mapping[str, object] = field(default_factory=dict)
    sizes: tuple[int, ...] = (1,)
    empty: Empty | None = None
    places: Mapping[str, Place] = field(default_factory=dict)
    part: int = 0
    last: bool = False
    alike: bool = False
    widest: int = 8
    strict: bool = False

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    def judged(self, tokens: int) -> int:
        """The first of so many tokens whose row comes of a piece."""
        return cuts_of(self.sizes, tokens)[-2] if self.last else 0

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        """Its output, of which nothing else is known.

        Raises:
            ValueError: its inputs cannot be cut, and it is strict.
        """
        given = by_place(arrays, options)
        lengths = {given[place].shape[axis] for place, axis in self.taken.tokens.items()}
        tokens = max(lengths)
        apart = {*self.taken.tokens, *self.past}
        others = (each for place, each in given.items() if place not in apart and is_array(each))
        if len(lengths) > 1 or tokens < LEAST or any(tokens in each.shape for each in others):
            if self.strict:
                raise ValueError("it is given other arrays of tokens than its inputs")
            return self.function(*arrays, **options)
        whole = self._called(given) if self.last else None
        axis, first_judged = self.taken.output, self.judged(tokens)
        outputs = [cut(parts_of(whole)[0], axis, 0, first_judged)] if first_judged else []
        try:
            outputs += [output for start, output in self._pieces(given, tokens) if start >= first_judged]
        except NarrowerError:
            if self.strict:
                raise
            return self.function(*arrays, **options)
        return joined(outputs, axis)

    def _pieces(self, given: Mapping[Parameter, Any], tokens: int) -> Iterator[tuple[int, Any]]:
        past: Any = None
        for start, stop in pairwise(cuts_of(self.sizes, tokens)):
            piece = {
                place: contiguous(cut(given[place], axis, start, stop)) for place, axis in self.taken.tokens.items()
            }
            if not start and self.empty is not None:  # with room for all tokens
                past = self.empty([given[place] for place in piece], self.taken)
            before = State.of(past) if self.strict and past is not None and not start else None
            named = {**self.wanted, **self._held(past)}
            named |= {name: self._placed(place, piece, start, stop) for name, place in self.places.items()}
            output, *others = parts_of(self._called({**given, **piece, **by_place((), named)}))
            changed, past = past, self._after(past, others, start, stop)
            if before is not None and self.empty is not None:
                before.check(self.empty, changed, past)
            check_bits(past, self._key(piece))
            yield start, output

    def _called(self, given: Mapping[Parameter, Any]) -> Any:
        arrays = [each for place, each in given.items() if isinstance(place, int)]
        return self.function(*arrays, **{name: each for name, each in given.items() if isinstance(name, str)})

    def _key(self, piece: Mapping[Parameter, Any]) -> Any:
        return [*piece.values()][min(1, len(piece) - 1)]

    def _placed(self, place: Place, piece: Mapping[Parameter, Any], start: int, stop: int) -> object:
        key = self._key(piece)
        samples = key.shape[self.taken.sizes["B"]] if "B" in self.taken.sizes else 1
        made = place(samples, start, stop)
        return made if isinstance(key, torch.Tensor) or not isinstance(made, torch.Tensor) else made.numpy()

    def _held(self, past: Any) -> dict[str, Any]:
        if past is None:
            return {}
        return {self.past[0]: past} if len(self.past) == 1 else dict(zip(self.past, past, strict=True))

    def _after(self, past: Any, others: Sequence[Any], start: int, stop: int) -> Any:
        """The cache for the next piece."""
        if self.empty is not None and not self.part:
            return past
        if len(self.past) > 1:
            return several_in(others, self.part, len(self.past))
        return returned(others, (start, stop), past, self.part, True)


def several_in(others: Sequence[Any], part: int, count: int) -> tuple[Any, ...]:
    """The arrays of a cache that begin at a part of what is returned after the output, or are that part."""
    found = [*others[max(0, part - 1) :]]
    together = found and isinstance(found[0], tuple | list) and len(found[0]) == count
    return tuple(found[0] if together else found[:count])


def check_bits(cache: Any, key: Any) -> None:
    """Refuses a cache that rounds what it is given.

    Raises:
        NarrowerError: it holds numbers of fewer bits.
    """
    narrower = [str(each.dtype) for each in arrays_in(cache) if _bits(each) < _bits(key)]
    if narrower:
        raise NarrowerError(f"its cache holds {narrower[0]} where its keys are {key.dtype}")


def _bits(array: Any) -> int:
    return int(array.dtype.itemsize)


def cut(array: Any, axis: int, start: int, stop: int) -> Any:
    """Some tokens of an array."""
    return array[(slice(None),) * axis + (slice(start, stop),)]


def longest(inputs: Sequence[Any], taken: Taken) -> int:
    """The number of tokens of the longest input."""
    return max(int(each.shape[axis]) for each, axis in zip(inputs, taken.tokens.values(), strict=True))


def zeros(like: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of the kind and type of an array."""
    if isinstance(like, torch.Tensor):
        return like.new_zeros(shape)
    return library_of(like).zeros(shape, like.dtype)


def contiguous(array: Any) -> Any:
    """The array in memory of its own, as a layer gives it: a cache that keeps views of it keeps nothing else."""
    if isinstance(array, torch.Tensor):
        return array.clone(memory_format=torch.contiguous_format)
    return np.array(array) if isinstance(array, np.ndarray) else array


def with_inner(function: Any, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
    """The function, where what is called at last is changed: everything around it calls it in its own layout."""
    outer = is_dataclass(function) and hasattr(function, "function") and not isinstance(function, OutputFirst)
    return replace(function, function=with_inner(function.function, change)) if outer else change(function)
