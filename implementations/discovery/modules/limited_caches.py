"""Caches of a limited number of tokens, such as the first ones and the latest: beyond it, pieces are not the whole."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.as_built import INPUTS, ROUNDINGS, AsBuilt, Call, moved_at
from attention_conformance.implementations.adapters.modes import Modes
from attention_conformance.implementations.adapters.torch_module import TorchModule
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.code_text import code_of
from attention_conformance.implementations.discovery.documented import sentences_of
from attention_conformance.implementations.discovery.modules.own_cache import InPieces
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Array, Problem

LEAST = 3
"""Tokens that a cache of few keeps next to the newest; one that keeps fewer has lost them."""
LIMITED = re.compile(
    r"\b(?:sinks?|evict\w*|truncat\w*|trim(?:s|med|ming)?|discard\w*|forgets?|forgotten|rolling|ring buffer|bounded"
    r"|cut (?:down|off|back)|at most|endless|\d+ (?:most )?(?:last|latest|recent|newest)"
    r"|(?:first|last|latest|recent|newest) \W?\w+\W? (?:tokens?|keys?|positions?))\b",
    re.IGNORECASE,
)
"""Words for a cache of a limited number of tokens."""
OF_LIMITS = {
    *("sink", "sinks", "recent", "latest", "last", "first", "start", "local", "window", "cache", "memory", "mem"),
    *("max", "maximum", "limit", "capacity", "budget", "keep", "kept", "tokens", "size", "len", "length", "context"),
}
"""Words in the names of the numbers that it may keep."""
MOST_SUMMED = 3
TOGETHER = 8
"""Tokens that are moved at once, as those that a cache has lost change nothing together: a call goes token by token."""
Answer = Callable[[Problem], Array | None]


def within_limit(way: InPieces, kind: object, whole: Answer, pieces: Answer, problem: Problem) -> InPieces:
    """The call with the number of tokens that its cache is seen to keep, where the class states that it is limited.

    `problem` has more tokens than that; nothing is known of what follows them.
    """
    if not speaks_of_limit(kind) and not any(_numbers(kind)):
        return way
    kept = kept_tokens(whole, pieces, problem)
    return replace(way, most=kept) if kept and states_limit(kind, kept) else way


def kept_tokens(whole: Answer, pieces: Answer, problem: Problem) -> int:
    """How many tokens the last row depends on in pieces; 0 where as a whole it depends on no more, or not on all."""
    one, other = whole(problem), pieces(problem)
    if one is None or other is None or one.shape != other.shape or not last_row_moves(one, other):
        return 0
    tokens = range(problem.query.shape[1])
    if not all(_depends(whole, one, problem, [token]) for token in tokens):
        return 0
    some = (tokens[start : start + TOGETHER] for start in range(0, len(tokens), TOGETHER))
    kept = sum(
        _depends(pieces, other, problem, [each])
        for those in some
        if _depends(pieces, other, problem, those)
        for each in those
    )
    return kept if LEAST < kept < len(tokens) else 0


def _depends(answer: Answer, usual: Array, problem: Problem, tokens: Iterable[int]) -> bool:
    """Whether the last row depends on any of these tokens."""
    found = answer(moved(problem, tokens))
    return found is not None and last_row_moves(usual, found)


def last_row_moves(one: Array, other: Array) -> bool:
    """Whether the last rows differ."""
    return bool(np.abs(other[:, -1] - one[:, -1]).max() > ROUNDINGS * np.abs(one).max())


def moved(problem: Problem, tokens: Iterable[int]) -> Problem:
    """The problem with other tokens there."""
    arrays = {}
    for name in INPUTS:
        arrays[name] = getattr(problem, name)
        for token in tokens:
            arrays[name] = moved_at(arrays[name], token)
    return problem.with_arrays(arrays)


def states_limit(kind: Any, kept: int) -> bool:
    """Whether its words speak of a limited cache, or numbers of its own add up to the tokens that it keeps."""
    if speaks_of_limit(kind):
        return True
    numbers = sorted({*_numbers(kind)})
    sums = {sum(each) for count in range(1, 1 + MOST_SUMMED) for each in combinations(numbers, count)}
    return bool({kept, kept - 1} & sums)  # its own token may come on top


def speaks_of_limit(kind: Any) -> bool:
    """Whether its documentation or its comments have words for a limited cache."""
    comments = (line.partition("#")[2] for line in code_of(kind).splitlines())
    return any(LIMITED.search(text) for text in (*sentences_of(kind), *comments))


def _numbers(kind: Any) -> Iterator[int]:
    """Whole numbers by the names of limits, of its constructor, of the class, and of its file."""
    built: Any = safe_call(lambda: kind.__init__).value
    code = getattr(built, "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    defaults = getattr(built, "__defaults__", None) or ()
    given = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    given |= getattr(built, "__kwdefaults__", None) or {}
    every = {**vars(sys.modules.get(kind.__module__, sys)), **vars(kind), **given}
    yield from (x for name, x in every.items() if type(x) is int and x > 0 and words_of(name) & OF_LIMITS)


def answers_of(run: TorchModule, device: str) -> Answer:
    """The outputs of a run; None where it raises."""

    def answer(problem: Problem) -> Array | None:
        found = safe_call(partial(run, problem.fresh(), device)).value
        return None if found is None else found.output

    return answer


def rows_of(run: AsBuilt, way: InPieces | None, device: str) -> Answer:
    """Its rows in pieces, or as a whole; None where it cannot be called so, or keeps numbers of fewer bits."""

    def answer(problem: Problem) -> Array | None:
        module = run.module(problem, device)
        found = safe_call(partial(run.answer, module, problem, device, way)).value
        return None if found is None or keeps_fewer_bits(module) or not np.isfinite(found).all() else found

    return answer


def keeps_fewer_bits(module: nn.Module) -> bool:
    """Whether it keeps numbers of fewer bits than float32."""
    kept = (each for part in module.modules() for each in [*part.buffers(False), *vars(part).values()])
    return any(isinstance(x, torch.Tensor) and x.is_floating_point() and x.itemsize < 4 for x in kept)


def limits_stated(calls: Iterable[object], modes: Modes) -> list[str]:
    """Notes on what is judged of caches that are limited, by the calls in pieces of alternatives and of the whole."""
    whole = modes.get(Feature.AS_BUILT)
    of_whole: Iterable[Call] = whole.pieces.values() if isinstance(whole, AsBuilt) else ()
    ways = [*(getattr(each, "call", None) for each in calls), *of_whole]
    most = [each.most for each in ways if isinstance(each, InPieces) and each.most]
    return [f"its cache keeps few tokens: in pieces, the first {min(most)} are judged"] if most else []
