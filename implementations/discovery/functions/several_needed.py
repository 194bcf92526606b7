"""Functions that have to be given several options, or one of an own kind: each gets what changes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.fillers import (
    TABLES,
    Axes,
    Filler,
    fillers,
    is_mask,
    places_within,
)
from attention_conformance.implementations.discovery.functions.needed_tables import NeededTables, of_each_kind
from attention_conformance.implementations.discovery.functions.shaped_tables import ShapedTables, with_shaped_tables
from attention_conformance.implementations.discovery.functions.single_needs import SingleNeed, with_single_need
from attention_conformance.implementations.discovery.probe import first_part, near, shape_of
from attention_conformance.implementations.discovery.signatures import dispensable, positional, required, signature_of
from attention_conformance.implementations.discovery.vocabulary import HEAD_COUNTS, KNOWN_NAMES

MOST = 64
"""Combinations that are tried with one layout."""
SEGMENTS_OF = {"query_positions": "query_segments", "key_positions": "key_segments"}
"""Positions, and the ids of the segments within which they count."""
LAYOUTS = (
    ((2, 3, 5, 4), Axes(1, -2)),
    ((2, 5, 3, 4), Axes(2, -3)),
    ((2, 5, 4), Axes(None, -2)),
    ((5, 4), Axes(None, -2)),
)
"""Shapes of inputs."""


@dataclass(frozen=True)
class SeveralNeeded:
    """A function some of whose options may be left out.

    Attributes:
        function: it.
        fillers: what its parameters are given where a call gives them nothing.
        axes: of its inputs.
    """

    function: Callable[..., Any]
    fillers: Mapping[str, Filler]
    axes: Axes

    @property
    def __signature__(self) -> inspect.Signature:
        signature = signature_of(self.function)
        for name in self.fillers:
            signature = dispensable(signature, name)
        return signature

    @property
    def about(self) -> str:
        """For a note."""
        given = ", ".join(f"{filler.words} in {name!r}" for name, filler in self.fillers.items())
        return f"given {given} where a problem has none"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        known = {KNOWN_NAMES.get(name): option for name, option in options.items()}
        for name, filler in self.fillers.items():
            ids = known.get(SEGMENTS_OF.get(KNOWN_NAMES.get(name, ""), ""))
            if options.get(name) is None:
                options[name] = filler.value(query, key, self.axes) if ids is None else places_within(ids)
        return self.function(query, key, value, **options)


def with_what_is_needed(function: Callable[..., Any]) -> SingleNeed | SeveralNeeded | ShapedTables | None:
    """The function, given what changes nothing for what it needs, or tables in its own shape.

    None where it needs nothing, or that is unknown.
    """
    return with_single_need(function) or _with_several(function) or with_shaped_tables(function)


def _with_several(function: Callable[..., Any]) -> SingleNeed | SeveralNeeded | None:
    """Where nothing is known to have no effect, it is looked at as if it needed that alone: tables, or a divisor."""
    needed = _needed(function)
    heads = {name: 1 for name in needed if name in HEAD_COUNTS}
    several = {name: fillers(p) for name, p in needed.items() if name not in heads}
    left = [name for name, each in several.items() if not each]
    if not several or (not heads and (len(left) == len(several) or _is_given_it_anyway(function, several))):
        return None
    bound = partial(function, **heads) if heads else function
    for made in _filled(bound, {name: each for name, each in several.items() if each}):
        kept = {name: filler for name, filler in made.fillers.items() if not is_mask(name)}
        if left and (single := with_single_need(made if made.fillers else bound)) is not None:
            return replace(single, function=replace(made, function=function, fillers=kept) if kept else function)
        if not left and _answers(made):  # where masks alone are needed, it raises without one
            return replace(made, function=function, fillers=kept or made.fillers)
    return None


def _needed(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """What must be given in addition to three inputs; nothing where there are fewer of these."""
    signature = safe_call(lambda: signature_of(function)).value
    inputs = [] if signature is None else [p.name for p in positional(signature)[:3]]
    every = signature.parameters.values() if signature is not None and len(inputs) == 3 else ()
    return {p.name: p for p in every if required(p) and p.name not in inputs}


def _is_given_it_anyway(function: Callable[..., Any], several: Mapping[str, Sequence[Filler]]) -> bool:
    """Whether it answers with what options of known names are given wherever they have to be given."""
    if not all(name in KNOWN_NAMES or is_mask(name) for name in several):
        return False
    return any(map(_answers, _filled(function, {name: each[:1] for name, each in several.items()})))


def _filled(function: Callable[..., Any], several: Mapping[str, Sequence[Filler]]) -> Iterator[SeveralNeeded]:
    for _, axes in LAYOUTS:
        tried = islice(product(*several.values()), MOST)
        for each in sorted(tried, key=lambda given: len({filler.rank for filler in given} - {0})):
            yield SeveralNeeded(function, dict(zip(several, each, strict=True)), axes)


def _answers(made: SeveralNeeded) -> bool:
    """Whether its output has the shape of its inputs, in the layout whose axes it is given, and no two rows alike."""
    for x in (x for shape, axes in LAYOUTS if axes == made.axes for x in of_each_kind(shape)):
        output = first_part(safe_call(partial(made, x, x, x)).value)
        if shape_of(output) == tuple(x.shape):
            array = safe_call(partial(as_array, output)).value
            rows = None if array is None else np.moveaxis(array, made.axes.tokens, 0)
            return rows is not None and not near(rows[0], rows[-1], "float32")
    return False


def as_array(output: Any) -> Any:
    """An output of any kind, which may need a gradient."""
    return np.asarray(output.detach() if hasattr(output, "detach") else output, np.float32)


def unjudged(function: object) -> dict[str, str]:
    """What it is given alike in each call, with the reason why that is not judged."""
    given = function.fillers.items() if isinstance(function, SeveralNeeded) else ()
    return {name: f"not judged: given {filler.words} in each call" for name, filler in given if not filler.judged}


def has_tables(function: object) -> bool:
    """Whether it is always given tables that are those of queries and of keys, so that there are as many of both."""
    while function is not None:
        if isinstance(function, NeededTables) and function.tables:
            return True
        if isinstance(function, SeveralNeeded) and any(KNOWN_NAMES.get(name) in TABLES for name in function.fillers):
            return True
        function = getattr(function, "function", None)
    return False
