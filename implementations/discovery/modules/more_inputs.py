"""More inputs of forwards: another sequence that may be left out, and what is needed whatever its default states."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any

from torch import nn

from attention_conformance.implementations.discovery.modules.forwards import ModuleCall, inputs_in
from attention_conformance.implementations.discovery.modules.neutrals import (
    MASKS,
    OF_KEYS,
    TABLE_WORDS,
    Neutral,
    combined,
    is_input,
)
from attention_conformance.implementations.discovery.signatures import is_variadic, required, role
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES, words_of

MOST_SECOND = 3
"""Parameters that are tried as an input of key and value."""
MOST_NEEDED = 8
"""Those of what may be left out, by its default."""


def with_context(call: ModuleCall, kind: type[nn.Module]) -> Iterator[ModuleCall]:
    """The calls of one input with another of key and value, which may be left out; the likelier first.

    Whatever is named, and is no mask, place, table or option, may be such an input.
    """
    signature = inspect.signature(kind.forward)
    whole = list(signature.parameters.values())[1:]
    inputs = inputs_in(signature.replace(parameters=whole))
    if call.inputs != 1 or not inputs or inputs[0].kind is inspect.Parameter.POSITIONAL_ONLY:
        return
    contexts = [p.name for p in whole if not required(p) and not is_variadic(p) and _is_context(p.name)]
    others = [p.name for p in whole if p.default is None and p.name not in KNOWN_NAMES and is_input(p.name)]
    masks = [p.name for p in whole if {"mask"} < words_of(p.name) and words_of(p.name) & OF_KEYS]
    own = set(call.options.named.spelled.values()) - {*masks}
    masked = {name: masks[0] for name in own if "mask" in words_of(name)} if len(masks) == 1 else {}
    for name in contexts if len(contexts) == 1 else () if contexts else others[:MOST_SECOND]:
        yield replace(call, inputs=2, keywords=(inputs[0].name, name), optional=True, of_context=masked)


def _is_context(name: str) -> bool:
    words = words_of(name)
    return (
        is_input(name)
        and "mask" not in words
        and bool(words & OF_KEYS or {"key", "value"} <= words or role(name) == "key")
    )


def with_needed(calls: Sequence[ModuleCall], kind: Any) -> Iterator[ModuleCall]:
    """The calls with tables, a mask, or positions, for a module that needs them, though they may be left out."""
    whole = [p for p in inspect.signature(kind.forward).parameters.values() if p.default is None]
    names = [p.name for p in whole if words_of(p.name) & TABLE_WORDS and p.name not in KNOWN_NAMES]
    inputs = [p.name for p in [*inspect.signature(kind.forward).parameters.values()][1:] if required(p)]
    second = [p.name for p in whole if p.name == "y" or _is_context(p.name)]
    if len(inputs) == len(second) == 1:
        keywords = (inputs[0], second[0])
        yield from (replace(call, inputs=2, keywords=keywords) for call in calls if call.inputs == 1)
    for call, neutral in product(calls, islice(combined(names), MOST_NEEDED) if names else ()):
        yield replace(call, tables={**call.tables, **neutral})
    several = [combination for combination in product((None, Neutral.PLACES), (None, *MASKS)) if any(combination)]
    for call, given in product(calls, sorted(several, key=lambda each: None not in each)):
        own = [call.options.named.spelled.get(option, "") for option in ("query_positions", "bool_mask")]
        tables = {name: each for name, each in zip(own, given, strict=True) if each is not None}
        if "" not in tables and not {*tables} & {*call.tables}:
            yield replace(call, tables={**call.tables, **tables})
