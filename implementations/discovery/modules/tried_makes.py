"""Tried makes: what is given to parameters of a constructor whose meaning is unknown, and to such settings.

For relations between its own answers alone, which hold at any sizes: all have one width and one number of heads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter, Signature
from itertools import islice, product
from typing import Any, TypeAlias

from torch import nn

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.bare import Passed
from attention_conformance.implementations.discovery.modules.constructor_names import (
    GROUPS,
    SQUARE,
    SQUARES,
    Size,
    options_of_settings,
    setting_size,
    settings_parameter,
    settings_read,
    size_of,
)
from attention_conformance.implementations.discovery.modules.constructors import Constructor
from attention_conformance.implementations.discovery.signatures import is_variadic, of_constructor, required
from attention_conformance.implementations.discovery.vocabulary import words_of

Value: TypeAlias = Any
MOST_PARTS, MOST_TRIED, MOST_COMBINED = 3, 64, 20_000
"""Classes of the file that stand for a part, ways to build it, and combinations that are put in order."""
OF_WIDTHS = {
    *("dim", "dims", "size", "width", "features", "channels", "units", "embed", "embd", "emb", "d", "hidden", "model"),
    *("c", "in", "out", "rank", "input", "output", "feature", "channel", "dimension", "latent"),
}
OF_LAYERS = {"norm", "act", "activation", "layer", "fn", "func", "function", "module", "cls", "proj", "projection"}
OF_PARTS = {"attention", "attn", "inner", "core", "attend", "encoding", "embedding", "pos"}
OF_PLACES = {"idx", "index", "id", "level", "stage", "shift", "i", "block", "number", "num"}
OF_SIDES = {"window", "resolution", "ws", "grid", "shape", "patch", "patches", "feat", "spatial", "spacial"}
LEAST_WIDTH = 16
"""Smaller numbers count something else."""
FIXED = (Size.WIDTH, Size.HEADS, Size.HEAD_WIDTH)


def tried_makes(kind: type[nn.Module], width: int, heads: int) -> Iterator[Constructor]:
    """The ways in which a class may be built, the likelier first; most of them cannot be."""
    signature = safe_call(lambda: of_constructor(kind)).value or Signature()
    parameters = [p for p in signature.parameters.values() if not is_variadic(p)]
    name = settings_parameter(signature)
    given = [p for p in parameters if required(p) and p.name != name]
    given += [p for p in parameters if not required(p) and (size_of(p.name) in FIXED or _is_wide(p))]
    changed: Sequence[Mapping[str, object]] = _settings(kind, name, width, heads) if name else [{}]
    choices = [_values(kind, p) for p in given]
    places = sorted(islice(product(*(range(len(each)) for each in choices)), MOST_COMBINED), key=sum)
    for chosen, settings in islice(product(places, changed), MOST_TRIED):
        values = {p.name: each[at] for p, each, at in zip(given, choices, chosen, strict=True)}
        sizes = {each: value for each, value in values.items() if isinstance(value, Size)}
        options = {each: value for each, value in values.items() if each not in sizes}
        if name or Size.WIDTH in sizes.values():
            make = Constructor(kind, settings=name, sizes=sizes, options=options, lenient=bool(name), changed=settings)
            yield replace(make, tokens=SQUARE) if {*sizes.values()} & {*SQUARES} else make


def _is_wide(parameter: Parameter) -> bool:
    """Whether it is a width by its words and by what it is by default."""
    wide = type(parameter.default) is int and parameter.default >= LEAST_WIDTH
    return wide and bool(words_of(parameter.name) & OF_WIDTHS)


def _values(kind: type[nn.Module], parameter: Parameter) -> tuple[Value, ...]:
    """What a parameter may be given, the likelier first."""
    name, words, written = parameter.name, words_of(parameter.name), str(parameter.annotation)
    found: list[Value] = [size] if (size := size_of(name)) else []
    if name in GROUPS or "head" in words or "heads" in words:
        found += [Size.HEAD_WIDTH, Size.HEADS] if words & OF_WIDTHS else [Size.HEADS]
    if words & OF_SIDES:
        found += [Size.WINDOW_SIDE, Size.WINDOW_SIDES, Size.LENGTH]
    if "bool" in written:
        found += [False, True]
    if words & OF_LAYERS or "Module" in written or "Callable" in written:
        found += [Passed, Size.LAYER]
    if words & OF_PARTS:
        found += [*_parts(kind), Passed()]
    if words & OF_PLACES:
        found += [0, 1]
    if words & OF_WIDTHS:
        found += [Size.WIDTH, Size.HEAD_WIDTH]
    return tuple(dict.fromkeys(found or [Size.WIDTH, Size.HEADS, 0, 1, None]))


def _parts(kind: type[nn.Module]) -> Iterator[nn.Module]:
    """Modules of other classes of its file, which need nothing."""
    own = vars(sys.modules.get(kind.__module__, sys))
    kinds = [each for each in own.values() if isinstance(each, type) and issubclass(each, nn.Module)]
    others = [each for each in kinds if each is not kind and each.__module__ == kind.__module__]
    made = (safe_call(each).value for each in others)
    yield from islice((each for each in made if each is not None), MOST_PARTS)


def _settings(kind: type[nn.Module], name: str, width: int, heads: int) -> list[Mapping[str, object]]:
    """What settings of unknown names may be: those of widths are that of a head, or all of them that of the inputs."""
    read = safe_call(lambda: settings_read(kind, name)).value or {}
    known = {p.name for p in safe_call(lambda: options_of_settings(kind, name, True)).value or ()}
    names = [each for each in {**read, **dict.fromkeys(known)} if setting_size(each) is None and each not in GROUPS]
    widths = [each for each in names if words_of(each) & OF_WIDTHS and not words_of(each) & {"max", *OF_SIDES}]
    one = width // heads
    mixed = {each: one if words_of(each) & {"head", "rope", "nope", "rotary"} else width for each in widths}
    return [{}, mixed, dict.fromkeys(widths, one)]
