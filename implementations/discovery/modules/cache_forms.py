"""Caches in forms of their own: objects, dictionaries, tuples that are cut, and places in what a module holds.

How one is driven is seen from its names and from short calls. Nothing is known of the answers but that a sequence gives
in pieces of any sizes what it gives as a whole.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import AsBuilt, Call
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.cache_pieces import Form, first_driven, keeps_few
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.harder_inputs import lengthened
from attention_conformance.implementations.discovery.modules.limited_caches import rows_of, within_limit
from attention_conformance.implementations.discovery.modules.neutrals import IDS, POSITION_WORDS
from attention_conformance.implementations.discovery.modules.own_cache import (
    OF_ROOM,
    PAST,
    ROOM,
    SAMPLES,
    InPieces,
    Place,
    calls_in_pieces,
    is_plain,
    parameters_of,
    pasts_of,
    preparing,
    wanted_of,
)
from attention_conformance.implementations.discovery.signatures import is_variadic, required
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.problem import Array, Problem

SHORT = 7
"""Tokens of a sequence that shows how a cache is driven: the longest pieces end with several of them."""
MOST_PARTS = 3
"""Parts of an answer in which a cache is looked for."""
OF_STARTS = {"start", "offset"}
"""Words in the names of the number of tokens before a piece."""
OF_LENGTHS = {"len", "length", "seen"}
OF_INDEX = {"index", "idx"}
STARTS = {
    *("pos", "position", "step", "cur_pos", "current_pos", "write_pos"),
    *("index", "idx", "cur_index", "write_index"),
}
"""Names of the place of the first new token; with a word for a cache an index is one, too."""
CERTAIN = {"start_pos", "input_pos", "cache_position", "position_ids"}
"""Names that state one form of places."""
Empty: TypeAlias = Callable[[nn.Module, torch.Tensor, int], object]


def _start(batch: int, start: int, stop: int) -> object:
    return start


def _places(batch: int, start: int, stop: int) -> object:
    return torch.arange(start, stop)


def _places_of_samples(batch: int, start: int, stop: int) -> object:
    return torch.arange(start, stop).expand(batch, -1)


def may_be_driven(kind: object, call: ModuleCall) -> bool:
    """Whether names state that it has a cache."""
    named = bool(call.resets or preparing(kind)[0] or pasts_of(kind))
    return is_plain(call) and (named or any(place_values(each.name) for each in parameters_of(kind)))


def pieces_of(run: AsBuilt, kind: object, call: ModuleCall, problem: Problem | None, device: str) -> Mapping[str, Call]:
    """The calls in pieces that answer a problem, and those of a form that is seen, by names for messages."""
    if problem is None:
        return {}
    known = dict(calls_in_pieces(kind, call))
    errors = {how: safe_call(partial(run.output, problem, device, each)).error for how, each in known.items()}
    answered = {how: each for how, each in known.items() if not errors[how]}
    every = {**answered, **driven(run, kind, call, lengthened(problem, SHORT), device)}
    return {how: _limited(run, each, kind, problem, device) for how, each in every.items()}


def _limited(run: AsBuilt, way: InPieces, kind: object, problem: Problem, device: str) -> InPieces:
    """The call in pieces of as many tokens as its cache keeps, where these are a limited number by what it states."""
    return within_limit(way, kind, rows_of(run, None, device), rows_of(run, way, device), lengthened(problem))


def last_pieces_of(
    run: AsBuilt, kind: object, call: ModuleCall, problem: Problem | None, device: str, flagged: bool
) -> Mapping[str, Call]:
    """The same of a module that is not causal by itself: the last piece alone, and all with its flag, where it has one.

    A triangle that starts top left may be meant for the first piece alone.
    """
    if problem is None or not pasts_of(kind):
        return {}
    short = lengthened(problem, SHORT)
    found: dict[str, Call] = dict(driven(run, kind, call, short, device, last=True))
    causal = driven(run, kind, call, short.but(causal=True), device, last=False, flag=True) if flagged and found else {}
    return {**found, **{f"with its causal flag, {how}": each for how, each in causal.items()}}


def in_long(run: AsBuilt, problem: Problem | None, device: str) -> Iterator[AsBuilt]:
    """The run with those of its calls in pieces that answer a long sequence, unless its cache is of few; with none."""
    if problem is not None:
        long = lengthened(problem)
        errors = {how: safe_call(partial(run.output, long, device, each)).error for how, each in run.pieces.items()}
        pieces = {how: each for how, each in run.pieces.items() if not errors[how]}
        first = next((each for each in pieces.values() if isinstance(each, InPieces)), None)
        few = first is not None and keeps_few(partial(_rows, run, device), first, long)
        yield replace(run, pieces={} if few else pieces)
    yield replace(run, pieces={})


def driven(
    run: AsBuilt,
    kind: object,
    call: ModuleCall,
    problem: Problem,
    device: str,
    last: bool = False,
    flag: bool | None = None,
) -> dict[str, InPieces]:
    """The calls in pieces, by names for messages, through the first form of a cache that a short sequence shows."""
    if not is_plain(call) or safe_call(partial(run.output, problem, device)).error:
        return {}
    flag = False if last else flag
    ways = ((form, replace(form.call, last=last, flag=flag)) for form in _forms(kind, call, run.build(problem)))
    forms = (replace(form, call=way, certain=form.certain and not flag) for form, way in ways)
    return first_driven(forms, partial(_rows, run, device), problem)


def _rows(run: AsBuilt, device: str, way: InPieces | None, problem: Problem) -> Array | None:
    """Its rows in pieces; None where it cannot be called so, or keeps numbers of fewer bits."""
    return rows_of(run, way, device)(problem)


def _forms(kind: object, call: ModuleCall, module: nn.Module) -> Iterator[Form[InPieces]]:
    """The ways that names allow, the likelier first."""
    pasts, (method, sizes) = pasts_of(kind), preparing(kind)
    wanted = wanted_of(parameters_of(kind))
    prepared = (method, sizes) if method and not (call.resets or pasts) else ("", {})
    for places, certain in placed(parameters_of(kind)):
        usual = InPieces(call, "", wanted, prepared, places=places)
        for past in pasts:
            for empty in empties(kind, module):
                yield Form(f"through {past}", replace(usual, past=past, empty=empty), certain, True)
            for part in range(1, 1 + MOST_PARTS):
                yield Form(f"through {past}", replace(usual, past=past, part=part), certain, True)
        if prepared[0]:
            yield Form(f"after {method}({', '.join(sizes)})", usual, certain, False)
        elif call.resets:
            yield Form(f"after {call.resets}()", usual, certain, False)
        elif places and not pasts:
            yield Form(f"with {', '.join(places)}", usual, certain, False)


def placed(parameters: Iterable[inspect.Parameter]) -> Iterator[tuple[dict[str, Place], bool]]:
    """What states where a piece lies, by parameters that take it, and whether the names leave no doubt."""
    named = [each for each in parameters if not words_of(each.name) & {"mask", "freqs", "cis", "cos", "sin"}]
    choices: dict[str, list[Place | None]] = {}
    for parameter in named:
        values = place_values(parameter.name)
        if values:
            choices[parameter.name] = [*values, *([] if required(parameter) else [None])]
    certain = all(name in CERTAIN for name in choices)
    for chosen in product(*choices.values()):
        given = {name: place for name, place in zip(choices, chosen, strict=True) if place is not None}
        firsts = all(place is choices[name][0] for name, place in given.items())
        yield given, certain and firsts and len(given) == len(choices)


def place_values(name: str) -> list[Place]:
    """What a parameter of this name may be given, the likelier first."""
    words = words_of(name)
    placed = words & (POSITION_WORDS | {"positions"})
    if words & OF_STARTS or (words & OF_LENGTHS and words & (PAST | {"prev", "previous"})):
        return [_start]
    if placed and words & IDS:
        return [_places_of_samples, _places]
    if placed and words & {"input", "cache", "positions"}:
        return [_places, _places_of_samples, *([_start] if words & PAST else [])]
    stated = bool(words & PAST and words & OF_INDEX) or name in STARTS
    return [_start, _places] if stated else []


def empties(kind: Any, module: nn.Module) -> Iterator[Empty]:
    """What may be given as an empty cache that the calls change: an object of its file, a dictionary or a list."""
    method, sizes = preparing(kind)
    if method:
        yield partial(_of_method, method, sizes)
    space, stated = getattr(kind.forward, "__globals__", {}), parameters_of(kind)
    for each in cache_classes(space, stated, kind):
        if built_empty(each, module, torch.zeros(1, 1, 8, dtype=torch.float64), 2) is not None:
            yield partial(built_empty, each)
    yield lambda *_: {}
    yield lambda *_: []


def _of_method(method: str, sizes: Mapping[str, int], module: nn.Module, x: torch.Tensor, heads: int) -> object:
    return getattr(module, method)(**{name: size or len(x) for name, size in sizes.items()})


def cache_classes(space: Mapping[str, Any], parameters: Iterable[inspect.Parameter], user: object) -> list[type]:
    """The classes of a file that are named as caches, or stated as the type of one; those first.

    `space` has what the file has, and `parameters` are those of what uses the cache.
    """
    stated = {word for each in parameters for word in re.findall(r"\w+", str(each.annotation))}
    own = {n: x for n, x in space.items() if isinstance(x, type) and x is not user and not issubclass(x, torch.Tensor)}
    named = [name for name in own if name in stated or "cache" in name.lower()]
    return [own[name] for name in sorted(named, key=lambda name: name not in stated)]


def built_empty(cache: Callable[..., object], module: object, x: torch.Tensor, heads: int, room: int = ROOM) -> object:
    """An empty one of a class, or of a function that makes one; None where what it needs is unknown."""
    signature = safe_call(lambda: inspect.signature(cache)).value
    given = {}
    for parameter in signature.parameters.values() if signature else ():
        value = _size(parameter.name, module, x, heads)
        value = room if value is ROOM else value
        if value is None and required(parameter) and not is_variadic(parameter):
            return None
        if value is not None and (required(parameter) or parameter.name == "dtype"):
            given[parameter.name] = value
    return safe_call(lambda: cache(**given)).value if signature else None


def _size(name: str, module: object, x: torch.Tensor, heads: int) -> Any:
    """What an argument of a cache's constructor is by its name; None where that is unknown."""
    words, own = words_of(name), getattr(module, name, None)
    if name in ("dtype", "device"):
        return getattr(x, name)
    if own is not None and not isinstance(own, torch.Tensor):
        return own
    if words & (SAMPLES | {"bs"}):
        return len(x)
    if "heads" in words or {"n", "head"} <= words or {"num", "head"} <= words:
        return heads
    if {"head", "dim"} <= words or {"d", "head"} <= words or name in ("head_size", "d_k"):
        return x.shape[2] // heads
    if "window" in words:
        spans = [each for n, each in vars(module).items() if "window" in words_of(n) and isinstance(each, int)]
        return spans[0] if spans else None
    if words & {"layers", "layer"}:
        return 1
    return ROOM if words & (OF_ROOM | {"max", "capacity"}) else None
