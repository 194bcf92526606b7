"""Functions that are passed an object of settings: its sizes are those of the inputs, its other fields are options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.functions.given_sizes import HEADS, Shapes, shapes
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.modules.constructor_names import (
    options_of_settings,
    settings_of,
    settings_parameter,
)
from attention_conformance.implementations.discovery.probe import first_part, shape_of
from attention_conformance.implementations.discovery.signatures import positional, required, role, signature_of
from attention_conformance.implementations.discovery.vocabulary import INPUTS, KNOWN_NAMES


@dataclass(frozen=True)
class OwnSettings:
    """A function that is passed an object of settings in each call.

    Attributes:
        function: it.
        name: that parameter.
        axis: that of the heads in its inputs; None where these have heads and widths in one axis, the last.
    """

    function: Callable[..., Any]
    name: str
    axis: int | None

    @cached_property
    def fields(self) -> Sequence[inspect.Parameter]:
        """Its settings that are no sizes, as options."""
        return options_of_settings(as_written(self.function), self.name, lenient=True)

    @property
    def __signature__(self) -> inspect.Signature:
        left = [p for p in signature_of(self.function).parameters.values() if p.name != self.name]
        heads = [inspect.Parameter(HEADS, inspect.Parameter.KEYWORD_ONLY)] if self.axis is None else []
        options = [p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p for p in left[3:]]
        own = [p for p in self.fields if p.name not in {each.name for each in left}]
        return inspect.Signature([*left[:3], *heads, *options, *own])

    @property
    def about(self) -> str:
        """For a note."""
        return f"the sizes in its {self.name!r} are those of its inputs"

    def __call__(self, query: Any, key: Any, value: Any, *, num_heads: int = 0, **options: Any) -> Any:
        """The function's answer."""
        heads = num_heads if self.axis is None else query.shape[self.axis]
        width = query.shape[-1] if self.axis is None else query.shape[-1] * heads
        key_heads = key.shape[-1] // max(1, width // max(1, heads)) if self.axis is None else key.shape[self.axis]
        parameters = signature_of(self.function).parameters
        changed = {p.name: options.pop(p.name) for p in self.fields if p.name in options and p.name not in parameters}
        settings = settings_of(as_written(self.function), self.name, width, heads, True, key_heads, changed)
        place = [*parameters].index(self.name)
        if parameters[self.name].kind is inspect.Parameter.KEYWORD_ONLY or place > 2:
            return self.function(query, key, value, **{self.name: settings}, **options)
        inputs = [query, key, value]
        return self.function(*inputs[:place], settings, *inputs[place:], **options)


def with_own_settings(function: Callable[..., Any]) -> OwnSettings | None:
    """The function, passed settings for its inputs; None where it takes no such object, or fewer than three inputs."""
    signature = safe_call(lambda: signature_of(function)).value
    every = signature.parameters.values() if signature is not None else ()
    others = [p for p in every if role(p.name) not in INPUTS and KNOWN_NAMES.get(p.name) not in INPUTS]
    name = "" if isinstance(function, OwnSettings) else settings_parameter(inspect.Signature(others))
    if not name or signature is None:
        return None
    rest = [p for p in positional(signature) if p.name != name]
    if len(rest) < 3 or any(required(p) and p.name not in KNOWN_NAMES for p in rest[3:]):
        return None
    return next((made for each in shapes() if _answers(made := OwnSettings(function, name, each[2]), each)), None)


def _answers(made: OwnSettings, each: Shapes) -> bool:
    """Whether its answer to inputs of these shapes has that of the queries."""
    of_query, of_key, axis = each
    heads = {HEADS: of_query[-1] // 4} if axis is None else {}
    inputs = zip(of_each_kind(of_query), of_each_kind(of_key), strict=True)
    calls = (partial(made, query, key, key, **heads) for query, key in inputs)
    return any(shape_of(first_part(safe_call(call).value)) == of_query for call in calls)
