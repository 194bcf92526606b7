"""Forms of caches, whatever takes them: the first one in which a sequence in pieces gets what it gets as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from attention_conformance.implementations.adapters.as_built import ROUNDINGS
from attention_conformance.implementations.discovery.modules.harder_inputs import TOKENS
from attention_conformance.implementations.discovery.modules.limited_caches import LEAST, last_row_moves, moved
from attention_conformance.implementations.discovery.modules.own_cache import Place
from attention_conformance.spec.problem import Array, Problem

CUTS = {"in single tokens": (1,), "in pieces of several tokens": (3, 1, 7, 2)}
"""How a sequence is cut; windows are narrower than the longest piece."""
ANOTHER = "after another sequence"
BEGUN = "in single tokens after a prompt"
PROMPT, FEW = (101, *(1,) * (TOKENS - 101)), (3, *(1,) * 4)
"""A prompt that fills a cache of few tokens several times, not evenly, and one that shows whether it is kept."""
STEPS = {"in single tokens": (1,), BEGUN: (3, *(1,) * TOKENS)}
"""The same for what takes a prompt, and one token at a time then."""
LATER = 4
"""The first token after a piece of several tokens and a single one."""
NEAR = float(np.finfo(np.float32).eps) ** (3 / 4)
"""Of the largest number: more than roundings of a cache in float32."""
COARSE = 0.2
"""Of the largest number: more than what codes of few bits change."""


class Pieces(Protocol):
    """A call in pieces, a dataclass: of these numbers of tokens, with what states where they lie."""

    @property
    def sizes(self) -> tuple[int, ...]: ...
    @property
    def places(self) -> Mapping[str, Place]: ...
    def judged(self, tokens: int) -> int:
        """The first of so many tokens whose row comes of a piece."""
        ...


Way = TypeVar("Way", bound=Any)
"""`Pieces`, of which `replace` makes others."""
RowsOf: TypeAlias = Callable[[Way | None, Problem], Array | None]
"""The rows in pieces, or of all tokens at once; None where there are none."""


@dataclass(frozen=True)
class Form(Generic[Way]):
    """A way to drive a cache.

    Attributes:
        name: for messages.
        call: in pieces.
        certain: whether its names leave no doubt, so that it is a mistake where no piece is answered as in the whole.
        given: whether the cache is given with each piece.
    """

    name: str
    call: Way
    certain: bool
    given: bool


def first_driven(
    forms: Iterable[Form[Way]], rows_of: RowsOf[Way], problem: Problem, cuts: Mapping[str, tuple[int, ...]] = CUTS
) -> dict[str, Way]:
    """The same for whatever takes a cache; `rows_of`: what it answers in pieces, or as a whole.

    A form in which all pieces are answered as in the whole comes before one in which some of them are.
    """
    whole, seen = rows_of(None, problem), list[dict[str, Way]]()
    if whole is None or whole.shape[1] <= LATER:
        return {}
    for form in forms:
        ways, complete = _driven_so(form, rows_of, whole, problem, cuts)
        if complete:
            return ways or {}
        seen += [] if ways is None else [ways]
    return seen[0] if seen else {}


def _driven_so(
    form: Form[Way], rows_of: RowsOf[Way], whole: Array, problem: Problem, cuts: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, Way] | None, bool]:
    """The calls in pieces in this form, None where it is none of a cache, and whether all of them are right."""
    ways = {cut: replace(form.call, sizes=sizes) for cut, sizes in cuts.items()}
    rows = {cut: rows_of(way, problem) for cut, way in ways.items()}
    used = {cut: ways[cut] for cut, found in rows.items() if found is not None and found.shape == whole.shape}
    right = [cut for cut in used if _is_near(rows[cut], whole)]
    known = any(_is_near_later(rows[cut], whole, ways[cut]) for cut in used)
    clear = form.certain and bool(used) and all(_is_another(rows[cut], whole) for cut in used)
    if not (right or known or clear) or not _uses_cache(rows_of, used, rows, problem):
        return None, False
    if not right and keeps_few(rows_of, next(iter(used.values())), problem):
        return {}, False
    if right and not form.given and _begins_anew(rows_of, used, rows, problem):
        used = {cut: way for cut, way in used.items() if cut in right}
    named = {f"{cut} {form.name}": way for cut, way in used.items()}
    if right and form.call.places and not form.given:
        cut, begun = right[0], replace(form.call, sizes=FEW)
        named[f"{cut} {form.name}, {ANOTHER}"] = replace(used[cut], before=True)
        if _is_near(rows_of(begun, problem), whole):
            named[f"{BEGUN} {form.name}"] = replace(begun, sizes=PROMPT)
    return named, len(right) == len(used)


def _is_near(one: Array | None, other: Array) -> bool:
    return one is not None and bool(np.abs(one - other).max() <= NEAR * np.abs(other).max())


def _is_near_later(one: Array | None, other: Array, way: Pieces) -> bool:
    """Whether a token after a first piece has its row, of those that come in pieces."""
    tokens = range(max(way.sizes[0], way.judged(other.shape[1])), other.shape[1])
    return one is not None and any(_is_near(one[:, at], other[:, at]) for at in tokens)


def _is_another(one: Array | None, other: Array) -> bool:
    """Whether they differ by more than the codes of a quantised cache do."""
    return one is not None and bool(np.abs(one - other).max() > COARSE * np.abs(other).max())


def keeps_few(rows_of: RowsOf[Way], way: Way, problem: Problem) -> bool:
    """Whether the last row, which depends on all tokens, depends in pieces on some of them alone: a cache of few."""
    tokens = problem.query.shape[1]
    spans = (range(tokens // 3), range(tokens // 3, tokens // 2), range(tokens - LEAST, tokens - LEAST + 1))
    whole, pieces = ([_moves_last(rows_of, each, problem, span) for span in spans] for each in (None, way))
    return all(whole) and pieces[2] and not all(pieces)


def _moves_last(rows_of: RowsOf[Way], way: Way | None, problem: Problem, tokens: range) -> bool:
    """Whether the last row changes with these tokens."""
    one, other = (rows_of(way, each) for each in (problem, moved(problem, tokens)))
    return one is not None and other is not None and last_row_moves(one, other)


def _changed(rows_of: RowsOf[Way], way: Way, rows: Array | None, problem: Problem, tokens: range) -> Array | None:
    """Which rows change with these tokens; None where they are not answered."""
    found = rows_of(way, moved(problem, tokens))
    if found is None or rows is None:
        return None
    return np.asarray(np.abs(found - rows).max((0, 2)) > ROUNDINGS * np.abs(rows).max())


def _uses_cache(
    rows_of: RowsOf[Way], ways: Mapping[str, Way], rows: Mapping[str, Array | None], problem: Problem
) -> bool:
    """Whether a piece depends on an earlier one."""
    for cut, way in ways.items():
        first = way.sizes[0]
        changed = _changed(rows_of, way, rows[cut], problem, range(first))
        if changed is not None and changed[max(first, way.judged(len(changed))) :].any():
            return True
    return False


def _begins_anew(
    rows_of: RowsOf[Way], ways: Mapping[str, Way], rows: Mapping[str, Array | None], problem: Problem
) -> bool:
    """Whether a later piece of several tokens is answered as the beginning of a sequence: such a cache is for one."""
    for cut, way in ways.items():
        if way.sizes[0] > 1:
            changed = _changed(rows_of, way, rows[cut], problem, range(LATER))
            return changed is None or not changed[LATER:].any()
    return False
