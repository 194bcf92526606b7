"""Caches in forms of their own: objects, dictionaries, tuples that are cut, and places in what a module holds.

How one is driven is seen from its names and from short calls. Nothing is known of the answers but that a sequence gives
in pieces of any sizes what it gives as a whole.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import ROUNDINGS, AsBuilt, Call
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.harder_inputs import TOKENS, lengthened
from attention_conformance.implementations.discovery.modules.limited_caches import moved, rows_of, within_limit
from attention_conformance.implementations.discovery.modules.neutrals import IDS, POSITION_WORDS, words_of
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
from attention_conformance.spec.problem import Array, Problem

CUTS = {"in single tokens": (1,), "in pieces of several tokens": (3, 1, 7, 2)}
"""How a sequence is cut; windows are narrower than the longest piece."""
ANOTHER = "after another sequence"
SHORT = 7
"""Tokens of a sequence that shows how a cache is driven: the longest pieces end with several of them."""
BEGUN = "in single tokens after a prompt"
PROMPT, FEW = (101, *(1,) * (TOKENS - 101)), (3, *(1,) * (SHORT - 3))
"""A prompt that fills a cache of few tokens several times, not evenly, and one that shows whether it is kept."""
LATER = 4
"""The first token after a piece of several tokens and a single one."""
LEAST = 3
"""Tokens that a cache of few keeps; one that keeps fewer has lost them."""
NEAR = float(np.finfo(np.float32).eps) ** (3 / 4)
"""Of the largest number: more than roundings of a cache in float32."""
COARSE = 0.2
"""Of the largest number: more than what codes of few bits change."""
MOST_PARTS = 3
"""Parts of an answer in which a cache is looked for."""
OF_STARTS = {"start", "offset"}
"""Words in the names of the number of tokens before a piece."""
OF_LENGTHS = {"len", "length", "seen"}
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
    return is_plain(call) and (named or any(_values(each.name) for each in parameters_of(kind)))


@dataclass(frozen=True)
class Form:
    """A way to drive a cache.

    Attributes:
        name: for messages.
        call: in pieces.
        certain: whether its names leave no doubt, so that it is a mistake where no piece is answered as in the whole.
        given: whether the cache is given with each piece.
    """

    name: str
    call: InPieces
    certain: bool
    given: bool


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


def in_long(run: AsBuilt, problem: Problem | None, device: str) -> Iterator[AsBuilt]:
    """The run with those of its calls in pieces that answer a long sequence, unless its cache is of few; with none."""
    if problem is not None:
        long = lengthened(problem)
        errors = {how: safe_call(partial(run.output, long, device, each)).error for how, each in run.pieces.items()}
        pieces = {how: each for how, each in run.pieces.items() if not errors[how]}
        first = next((each for each in pieces.values() if isinstance(each, InPieces)), None)
        few = first is not None and keeps_few(run, first, long, device)
        yield replace(run, pieces={} if few else pieces)
    yield replace(run, pieces={})


def driven(run: AsBuilt, kind: object, call: ModuleCall, problem: Problem, device: str) -> dict[str, InPieces]:
    """The calls in pieces, by names for messages, through the first form of a cache that a short sequence shows."""
    whole = safe_call(partial(run.output, problem, device)).value
    if whole is None or not is_plain(call) or whole.shape[1] <= LATER:
        return {}
    for form in _forms(kind, call, run.build(problem)):
        ways = {cut: replace(form.call, sizes=sizes) for cut, sizes in CUTS.items()}
        rows = {cut: _rows(run, way, problem, device) for cut, way in ways.items()}
        used = {cut: ways[cut] for cut, found in rows.items() if found is not None and found.shape == whole.shape}
        right = [cut for cut in used if _is_near(rows[cut], whole)]
        known = any(_is_near_later(rows[cut], whole, ways[cut].sizes[0]) for cut in used)
        clear = form.certain and bool(used) and all(_is_another(rows[cut], whole) for cut in used)
        if not (right or known or clear) or not _uses_cache(run, used, rows, problem, device):
            continue
        if not right and keeps_few(run, next(iter(used.values())), problem, device):
            return {}
        if right and not form.given and _begins_anew(run, used, rows, problem, device):
            used = {cut: way for cut, way in used.items() if cut in right}
        named = {f"{cut} {form.name}": way for cut, way in used.items()}
        if right and form.call.places and not form.given:
            cut, begun = right[0], replace(form.call, sizes=FEW)
            named[f"{cut} {form.name}, {ANOTHER}"] = replace(used[cut], before=True)
            if _is_near(_rows(run, begun, problem, device), whole):
                named[f"{BEGUN} {form.name}"] = replace(begun, sizes=PROMPT)
        return named
    return {}


def _rows(run: AsBuilt, way: InPieces | None, problem: Problem, device: str) -> Array | None:
    """Its rows in pieces; None where it cannot be called so, or keeps numbers of fewer bits."""
    return rows_of(run, way, device)(problem)


def _is_near(one: Array | None, other: Array) -> bool:
    return one is not None and bool(np.abs(one - other).max() <= NEAR * np.abs(other).max())


def _is_near_later(one: Array | None, other: Array, first: int) -> bool:
    """Whether a token after a first piece has its row."""
    return one is not None and any(_is_near(one[:, at], other[:, at]) for at in range(first, other.shape[1]))


def _is_another(one: Array | None, other: Array) -> bool:
    """Whether they differ by more than the codes of a quantised cache do."""
    return one is not None and bool(np.abs(one - other).max() > COARSE * np.abs(other).max())


def keeps_few(run: AsBuilt, way: InPieces, problem: Problem, device: str) -> bool:
    """Whether the last row, which depends on all tokens, depends in pieces on some of them alone: a cache of few."""
    tokens = problem.query.shape[1]
    spans = (range(tokens // 3), range(tokens // 3, tokens // 2), range(tokens - LEAST, tokens - LEAST + 1))
    whole, pieces = ([_moves_last(run, each, problem, device, span) for span in spans] for each in (None, way))
    return all(whole) and pieces[2] and not all(pieces)


def _moves_last(run: AsBuilt, way: InPieces | None, problem: Problem, device: str, tokens: range) -> bool:
    """Whether the last row changes with these tokens."""
    one, other = (_rows(run, way, each, device) for each in (problem, moved(problem, tokens)))
    if one is None or other is None:
        return False
    return bool(np.abs(other[:, -1] - one[:, -1]).max() > ROUNDINGS * np.abs(one).max())


def _changed(
    run: AsBuilt, way: InPieces, rows: Array | None, problem: Problem, device: str, tokens: range
) -> Array | None:
    """Which rows change with these tokens; None where they are not answered."""
    found = _rows(run, way, moved(problem, tokens), device)
    if found is None or rows is None:
        return None
    return np.asarray(np.abs(found - rows).max((0, 2)) > ROUNDINGS * np.abs(rows).max())


def _uses_cache(
    run: AsBuilt, ways: Mapping[str, InPieces], rows: Mapping[str, Array | None], problem: Problem, device: str
) -> bool:
    """Whether a piece depends on an earlier one."""
    for cut, way in ways.items():
        first = way.sizes[0]
        changed = _changed(run, way, rows[cut], problem, device, range(first))
        if changed is not None and changed[first:].any():
            return True
    return False


def _begins_anew(
    run: AsBuilt, ways: Mapping[str, InPieces], rows: Mapping[str, Array | None], problem: Problem, device: str
) -> bool:
    """Whether a later piece of several tokens is answered as the beginning of a sequence: such a cache is for one."""
    for cut, way in ways.items():
        if way.sizes[0] > 1:
            changed = _changed(run, way, rows[cut], problem, device, range(LATER))
            return changed is None or not changed[LATER:].any()
    return False


def _forms(kind: object, call: ModuleCall, module: nn.Module) -> Iterator[Form]:
    """The ways that names allow, the likelier first."""
    wanted, pasts, (method, sizes) = wanted_of(kind), pasts_of(kind), preparing(kind)
    prepared = (method, sizes) if method and not (call.resets or pasts) else ("", {})
    for places, certain in _placed(kind):
        usual = InPieces(call, "", wanted, prepared, places=places)
        for past in pasts:
            for empty in _empties(kind, module):
                yield Form(f"through {past}", replace(usual, past=past, empty=empty), certain, True)
            for part in range(1, 1 + MOST_PARTS):
                yield Form(f"through {past}", replace(usual, past=past, part=part), certain, True)
        if prepared[0]:
            yield Form(f"after {method}({', '.join(sizes)})", usual, certain, False)
        elif call.resets:
            yield Form(f"after {call.resets}()", usual, certain, False)
        elif places and not pasts:
            yield Form(f"with {', '.join(places)}", usual, certain, False)


def _placed(kind: object) -> Iterator[tuple[dict[str, Place], bool]]:
    """What states where a piece lies, by parameters that take it, and whether the names leave no doubt."""
    named = [each for each in parameters_of(kind) if not words_of(each.name) & {"mask", "freqs", "cis", "cos", "sin"}]
    choices: dict[str, list[Place | None]] = {}
    for parameter in named:
        values = _values(parameter.name)
        if values:
            choices[parameter.name] = [*values, *([] if required(parameter) else [None])]
    certain = all(name in CERTAIN for name in choices)
    for chosen in product(*choices.values()):
        given = {name: place for name, place in zip(choices, chosen, strict=True) if place is not None}
        firsts = all(place is choices[name][0] for name, place in given.items())
        yield given, certain and firsts and len(given) == len(choices)


def _values(name: str) -> list[Place]:
    """What a parameter of this name may be given, the likelier first."""
    words = words_of(name)
    placed = words & (POSITION_WORDS | {"positions"})
    if words & OF_STARTS or (words & OF_LENGTHS and words & (PAST | {"prev", "previous"})):
        return [_start]
    if placed and words & IDS:
        return [_places_of_samples, _places]
    if placed and words & {"input", "cache", "positions"}:
        return [_places, _places_of_samples]
    return [_start, _places] if name in ("pos", "position", "step", "cur_pos", "current_pos") else []


def _empties(kind: Any, module: nn.Module) -> Iterator[Empty]:
    """What may be given as an empty cache that the calls change: an object of its file, a dictionary or a list."""
    method, sizes = preparing(kind)
    if method:
        yield partial(_of_method, method, sizes)
    for each in _classes(kind):
        if _built(each, module, torch.zeros(1, 1, 8, dtype=torch.float64), 2) is not None:
            yield partial(_built, each)
    yield lambda *_: {}
    yield lambda *_: []


def _of_method(method: str, sizes: Mapping[str, int], module: nn.Module, x: torch.Tensor, heads: int) -> object:
    return getattr(module, method)(**{name: size or len(x) for name, size in sizes.items()})


def _classes(kind: Any) -> list[type]:
    """The classes of its file that are named as caches, or stated as the type of one; those first."""
    space = getattr(kind.forward, "__globals__", {})
    stated = {word for each in parameters_of(kind) for word in re.findall(r"\w+", str(each.annotation))}
    own = {n: x for n, x in space.items() if isinstance(x, type) and x is not kind and not issubclass(x, torch.Tensor)}
    named = [name for name in own if name in stated or "cache" in name.lower()]
    return [own[name] for name in sorted(named, key=lambda name: name not in stated)]


def _built(cache: type, module: nn.Module, x: torch.Tensor, heads: int) -> object:
    """An empty one; None where what it needs is unknown."""
    signature = safe_call(lambda: inspect.signature(cache)).value
    given = {}
    for parameter in signature.parameters.values() if signature else ():
        value = _size(parameter.name, module, x, heads)
        if value is None and required(parameter) and not is_variadic(parameter):
            return None
        if value is not None and (required(parameter) or parameter.name == "dtype"):
            given[parameter.name] = value
    return safe_call(lambda: cache(**given)).value if signature else None


def _size(name: str, module: nn.Module, x: torch.Tensor, heads: int) -> Any:
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
