"""Caches that a module's forward takes and returns, or that it holds: a sequence in pieces has to give what it gives as
a whole.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, cycle, pairwise, takewhile
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import INPUTS, AsBuilt
from attention_conformance.implementations.adapters.jax_op import library_of
from attention_conformance.implementations.adapters.modes import Modes
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.adapters.torch_module import in_mode
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.neutrals import IDS, POSITION_WORDS, TABLE_WORDS
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem

IN_PIECES = "in pieces through "
UNKNOWN_FORM = "a cache in a form of its own"
WANTING = {"stream", "streaming", "incremental", "decode", "decoding", "stateful"}
"""Words in the names of flags that make a module keep what it has seen."""
PAST = {"past", "cache"}
"""Words in the names of what a call is given of those before it."""
OF_PLACES = POSITION_WORDS | TABLE_WORDS | IDS | {"len", "length"}
"""Words in the names of what states where a piece begins, which has to be given with it."""
POSITION_NAMES = POSITION_WORDS | {"positions"}
MAKING = {"setup", "set", "init", "make", "create", "allocate", "alloc", "build", "new", "empty"}
CACHES = {"cache", "caches", "kv"}
"""Words in the names of a method that makes a cache."""
SAMPLES, OF_ROOM, ROOM = {"batch", "bsz", "b"}, {"len", "length", "seq", "seqlen", "tokens", "size"}, 256
"""Words in the names of its sizes, and the tokens that it is to have room for."""
LEAST = 3
"""Tokens: a first piece, one of several tokens where there are so many, and the last token."""
Place = Callable[[int, int, int], object]
"""What states where a piece lies, of the number of samples, its first token and the one after its last."""


@dataclass(frozen=True)
class InPieces:
    """A call whose tokens come in pieces, each with the cache that the one before it returned.

    Attributes:
        call: of all tokens at once: where there are masks or few tokens, it is made.
        past: the parameter that takes the cache; empty where the module holds it, and the call empties it first.
        wanted: what makes it return or use one.
        prepared: its method that makes an empty cache before each sequence, with the sizes that this is given.
        sizes: tokens of the pieces, over and over; none: a first piece, one of several tokens, and the last token.
        empty: makes an empty cache that the calls change; None: they return one.
        places: what states where a piece lies, by the parameter that takes it.
        part: where in an answer the cache is; 0: where keys and values of all tokens so far are.
        before: whether another sequence comes first, of which a cache that is written from its beginning keeps nothing.
        most: tokens that its cache keeps by what it states: those that follow them are answered as a whole; 0: all.
        last: whether the rows of the last piece alone come of it, whose tokens see all others in any module.
        flag: whether a problem has to state that no token sees a later one, or must not; None: either.
    """

    call: ModuleCall
    past: str
    wanted: Mapping[str, object] = field(default_factory=dict)
    prepared: tuple[str, Mapping[str, int]] = ("", {})
    sizes: tuple[int, ...] = ()
    empty: Callable[[nn.Module, torch.Tensor, int], object] | None = None
    places: Mapping[str, Place] = field(default_factory=dict)
    part: int = 0
    before: bool = False
    most: int = 0
    last: bool = False
    flag: bool | None = None

    def __call__(self, module: nn.Module, given: Tensors, problem: Problem) -> Any:
        tokens = given["query"].shape[1]
        method, sizes = self.prepared
        if method and not (self.past and self.empty):
            getattr(module, method)(**{n: size or len(given["query"]) for n, size in sizes.items()})
        masked = any(getattr(problem, name) is not None for name in ("attn_mask", "key_padding_mask"))
        masked = masked or self.flag not in (None, problem.causal)
        if tokens < LEAST or masked or (problem.extension.has_dropout and module.training):
            return self.call(module, given, problem)
        mode = module.training
        in_mode(module, False)  # in which some modules use their cache alone
        try:
            if self.before:
                self._in_pieces(module, {**given, **dict.fromkeys(INPUTS, given["query"].flip(1))}, problem)
            return self._answered(module, given, problem)
        finally:
            in_mode(module, mode)

    def _answered(self, module: nn.Module, given: Tensors, problem: Problem) -> torch.Tensor:
        if not 0 < self.most < given["query"].shape[1]:
            return self._in_pieces(module, given, problem)
        later = first(self.call(module, given, problem))[0][:, self.most :]
        few = {**given, **dict.fromkeys(INPUTS, given["query"][:, : self.most])}
        return torch.cat([self._in_pieces(module, few, problem), later], 1)

    def _in_pieces(self, module: nn.Module, given: Tensors, problem: Problem) -> torch.Tensor:
        tokens, outputs = given["query"].shape[1], list[torch.Tensor]()
        first_judged = self.judged(tokens)
        if first_judged:
            outputs.append(first(self.call(module, given, problem))[0][:, :first_judged])
        past = self.empty(module, given["query"], problem.num_heads) if self.empty else None
        for start, stop in pairwise(cuts_of(self.sizes, tokens)):
            piece = given["query"][:, start:stop].contiguous()  # as an embedding gives it
            held: dict[str, object] = {} if past is None or not self.past else {self.past: past}
            held |= {name: place(len(piece), start, stop) for name, place in self.places.items()}
            always, resets = {**self.call.always, **self.wanted, **held}, "" if start else self.call.resets
            call = replace(self.call, always=always, resets=resets)
            output, *others = first(call(module, {**given, **dict.fromkeys(INPUTS, piece)}, problem))
            if not (self.empty and not self.part):
                past = returned(others, (start, stop), past, self.part, bool(self.past))
            outputs += [output] if start >= first_judged else []
        return torch.cat(outputs, 1)

    def judged(self, tokens: int) -> int:
        """The first of so many tokens whose row comes of a piece."""
        return cuts_of(self.sizes, tokens)[-2] if self.last else 0


def cuts_of(sizes: tuple[int, ...], tokens: int) -> list[int]:
    """Where pieces of these sizes begin and end."""
    if not sizes:
        return sorted({0, (tokens - 1) // 2, tokens - 1, tokens})
    return [0, *takewhile(lambda cut: cut < tokens, accumulate(cycle(sizes))), tokens]


def returned(others: Sequence[Any], tokens: tuple[int, int], past: Any, part: int, needed: bool) -> Any:
    """The cache in what is returned after the output of these tokens; `past` is what was given, `part` as in a call.

    Raises:
        ValueError: there is none, and it is needed.
    """
    start, stop = tokens
    if part:
        whole = _appended(past, others[part - 1], start, stop)
        return others[part - 1] if whole is None else whole
    appended = (_appended(past, part, start, stop) for part in others)
    found = next((each for each in appended if each is not None), None)
    found = next((part for part in others if holds(part, stop)), None) if found is None else found
    found = next((part for part in others if _holds_few(part)), None) if found is None else found
    if needed and found is None:
        raise ValueError(f"it returns no cache of {stop} tokens")
    return found


def first(answer: Any) -> tuple[Any, ...]:
    """The output, and what is returned after it."""
    return tuple(answer) if isinstance(answer, tuple | list) else (answer,)


def is_array(part: Any) -> bool:
    """Whether it is an array of any kind."""
    return hasattr(part, "shape") and hasattr(part, "ndim")


def joined(arrays: Sequence[Any], axis: int) -> Any:
    """Arrays of one kind, one after another along an axis."""
    if isinstance(arrays[0], torch.Tensor):
        return torch.cat([*arrays], axis)
    return library_of(arrays[0]).concatenate([*arrays], axis)


def _appended(past: Any, part: Any, start: int, stop: int) -> Any:
    """Keys and values so far, in one array, and those of new tokens alone, which the first models left to callers.

    None where it is neither, or holds the earlier tokens, too.
    """
    if not all(is_array(each) and each.ndim > 3 and 2 in each.shape[:2] for each in (past, part)):
        return None
    alike = [axis for axis in range(past.ndim) if _but_for(axis, past, part) and past.shape[axis] == start]
    axis = next((axis for axis in reversed(alike) if part.shape[axis] == stop - start), None)
    return None if axis is None or any(part.shape[each] == stop for each in alike) else joined([past, part], axis)


def _but_for(axis: int, one: Any, other: Any) -> bool:
    """Whether both have the same shape, apart from this axis."""
    return [*one.shape[:axis], *one.shape[axis + 1 :]] == [*other.shape[:axis], *other.shape[axis + 1 :]]


def holds(part: Any, tokens: int) -> bool:
    """Whether a part of an answer is keys and values of so many tokens."""
    stacked = is_array(part) and part.ndim > 3 and 2 in part.shape[:2]
    held = [part] if stacked else part
    if not isinstance(held, tuple | list) or not held:
        return False
    return all(is_array(each) and each.ndim > 2 and tokens in each.shape[1:] for each in held)


def _holds_few(part: Any) -> bool:
    """Whether a part of an answer is keys and values of as many tokens as a window has."""
    held = part if isinstance(part, tuple | list) and len(part) > 1 else [None]
    return all(each is not None and is_array(each) and each.ndim > 2 for each in held)


def calls_in_pieces(kind: object, call: ModuleCall) -> Iterator[tuple[str, InPieces]]:
    """Calls in pieces, by a name for messages; none where no parameter takes a cache, or more is needed with it."""
    places = [each for each in parameters_of(kind) if words_of(each.name) & OF_PLACES]
    if not is_plain(call) or call.tables or any(has_to_be_given(kind, each) for each in places):
        return
    wanted, pasts = wanted_of(parameters_of(kind)), pasts_of(kind)
    yield from ((f"{IN_PIECES}{name}", InPieces(call, name, wanted)) for name in pasts)
    if pasts or places:
        return
    method, sizes = preparing(kind)
    if method and not call.resets:
        yield f"in pieces after {method}({', '.join(sizes)})", InPieces(call, "", wanted, (method, sizes))
    if call.resets:
        yield f"in pieces after {call.resets}()", InPieces(call, "", wanted)


def is_plain(call: ModuleCall) -> bool:
    """Whether it is one of a sequence of tokens alone, which can be cut."""
    return call.inputs == 1 and not (call.tap or call.spatial or call.each_sample or call.listed)


def wanted_of(parameters: Iterable[inspect.Parameter]) -> dict[str, object]:
    """What makes it return or use a cache."""
    return {each.name: True for each in parameters if each.default is False and words_of(each.name) & (PAST | WANTING)}


def has_to_be_given(kind: Any, place: inspect.Parameter) -> bool:
    """Whether what states where a piece begins is needed with it; one may be left out that nothing says is needed."""
    text = f"{kind.__doc__} {kind.__init__.__doc__} {kind.forward.__doc__}"
    return place.default is not None or not words_of(place.name) & POSITION_NAMES or place.name in text


def preparing(kind: object) -> tuple[str, Mapping[str, int]]:
    """The method of a module that makes a cache, and the sizes that it needs: 0 for the samples, else the tokens."""
    methods = vars(kind) if isinstance(kind, type) and issubclass(kind, nn.Module) else {}
    for name, method in methods.items():
        if words_of(name) & MAKING and words_of(name) & CACHES and inspect.isfunction(method):
            needed = [p.name for p in [*inspect.signature(method).parameters.values()][1:] if p.default is p.empty]
            sizes = {p: 0 if words_of(p) & SAMPLES else ROOM for p in needed if words_of(p) & (SAMPLES | OF_ROOM)}
            if needed and len(sizes) == len(needed):
                return name, sizes
    return "", {}


def unused_caches(kind: object, alternatives: Collection[str], modes: Modes) -> dict[str, str]:
    """Why it is judged without a cache, by the parameter that takes it."""
    whole = modes.get(Feature.AS_BUILT)
    ways = {*alternatives, *(whole.pieces if isinstance(whole, AsBuilt) else ())}
    used = {name for name in pasts_of(kind) for way in ways if way.endswith(f" through {name}")}
    return {name: UNKNOWN_FORM for name in pasts_of(kind) if name not in used}


def pasts_of(kind: object) -> list[str]:
    """The parameters of its forward that take a cache, where there is one."""
    first = (each for each in parameters_of(kind) if each.default is None or each.default is each.empty)
    named = ((each.name, words_of(each.name)) for each in first)
    return [name for name, words in named if words & PAST and not words & POSITION_NAMES]


def parameters_of(kind: object) -> list[inspect.Parameter]:
    """Those of its forward, where it is a module of torch."""
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return []
    return list(inspect.signature(kind.forward).parameters.values())[1:]
