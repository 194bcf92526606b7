"""Prefix lengths: a number of first keys that every query sees, in functions that hide later keys."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck, near_outputs
from attention_conformance.implementations.discovery.documented import as_written, said_of, sentences_of
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.functions.neutral_numbers import NeutralNumber
from attention_conformance.implementations.discovery.functions.stored_axes import like, stacked
from attention_conformance.implementations.discovery.probe import first_part, shape_of
from attention_conformance.implementations.discovery.signatures import required, signature_of
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.features import Feature

PREFIXES = {"prefix", "prompt", "bidirectional"}
OF_COUNTS = {
    *("len", "length", "lens", "lengths", "size", "n", "num", "number", "count", "tokens", "token", "lm", "end", "of"),
}
"""Words of which the names of such numbers consist, next to one of the first."""
SEEN_BY_ALL = re.compile(
    r"\b(?:visible|seen|shown|attended|accessible)(?: to)? (?:to|by|from|for) (?:all|every|each|any)\b"
    r"|\bbi-?directional|\bboth (?:ways|directions)\b|\bfull(?:y)?[- ](?:visible|attention|connected|attend)"
    r"|\b(?:sees?|attends?(?: to)?) (?:all|each other|one another|the (?:whole|entire)|every)\b|\bnon-?causal"
    r"|\bprefix[- ]?lm\b",
    re.IGNORECASE,
)
"""Words for keys that all queries see."""
OF_MEMORY = re.compile(
    r"\b(?:past|cache\w*|memory|memories|extra|learn\w*|virtual|tuning|soft|prepend\w*)\b", re.IGNORECASE
)
"""Words for a prefix that is none of the tokens whose queries are given."""
OF_SAMPLES = re.compile(r"\((?:b|bs|bsz|batch\w*),?\)|\b(?:each|per) (?:sample|example|sequence)\b", re.IGNORECASE)
"""Words for one number for each sample."""
SHAPES = ((2, 3, 5, 4), (2, 5, 4), (5, 4))
"""Of inputs."""
BEHIND = "each query by a call with a {!r} that ends before it or at it"
AMID = "each query by a call in which it stands before the end of its {!r}"


@dataclass(frozen=True)
class OfPrefixes:
    """A causal function that is called for each query with another prefix, none of which shows it a later key.

    Attributes:
        function: it.
        name: its parameter for the number of keys in a prefix.
        flag: its causal flag; empty where it always is.
        amid: whether a query is moved to an earlier place within its prefix, where it sees the same.
        each: whether each sample is given a number of its own.
    """

    function: Callable[..., Any]
    name: str
    flag: str
    amid: bool
    each: bool

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The rows of all queries; where another option counts tokens, too, the function's answer."""
        length = query.shape[-2]
        if not length or length != key.shape[-2] or not query.shape[0] or not self._alone(options):
            return first_part(self.function(query, key, value, **options))
        rows: dict[tuple[int, int], Any] = {}
        for turn in range(length):
            own = [(turn + sample * self.each) % length for sample in range(query.shape[0])]
            rows |= self._rows(own, (query, key, value), options)
        samples = [stacked([rows[sample, row] for row in range(length)], -2) for sample in range(query.shape[0])]
        return stacked(samples, 0)

    def _alone(self, options: Mapping[str, Any]) -> bool:
        """Whether later keys are hidden, and nothing else that is given counts or hides keys."""
        others = [each for name, each in options.items() if name not in (self.flag, self.name)]
        causal = not self.flag or options.get(self.flag) is True
        return causal and all(each is None or isinstance(each, bool | float) for each in others)

    def _rows(self, own: Sequence[int], inputs: tuple[Any, Any, Any], options: Mapping[str, Any]) -> dict[Any, Any]:
        """The row of each sample at its own place, of one call."""
        query, key, value = inputs
        numbers = [row + 1 if self.amid or row % 2 else row // 2 for row in own]
        if self.amid:
            moved = [query[sample][..., [row] * query.shape[-2], :] for sample, row in enumerate(own)]
            query = stacked(moved, 0)
        given = like(np.array(numbers), query) if self.each else numbers[0]
        answer = first_part(self.function(query, key, value, **{**options, self.name: given}))
        places = [row // 2 if self.amid else row for row in own]
        return {(sample, row): answer[sample][..., places[sample], :] for sample, row in enumerate(own)}


def prefix_number(function: Callable[..., Any]) -> str:
    """Its parameter for the number of keys in a prefix, by its name; empty for none, or several."""
    own = [*signature_of(function).parameters.values()][3:]
    named = [p.name for p in own if _counts(p.name) and (p.default in (None, p.empty) or _is_number(p.default))]
    return named[0] if len(named) == 1 else ""


def _is_number(default: object) -> bool:
    return type(default) in (int, float)  # 0.0 where it has to be given


def _counts(name: str) -> bool:
    words = words_of(name) - {""}
    return bool(words & PREFIXES) and words - PREFIXES <= OF_COUNTS


def with_needed_prefix(function: Callable[..., Any]) -> NeutralNumber | None:
    """The function without a prefix by default; None where none has to be given, or more than that has to."""
    signature = safe_call(lambda: signature_of(function)).value
    needed = [] if signature is None else [p.name for p in [*signature.parameters.values()][3:] if required(p)]
    if len(needed) != 1 or needed[0] != prefix_number(function):
        return None
    made = NeutralNumber(function, needed[0], 0, why="no prefix")
    return made if any(_answers(made, x) for shape in SHAPES for x in of_each_kind(shape)) else None


def _answers(made: NeutralNumber, x: Any) -> bool:
    return shape_of(first_part(safe_call(lambda: made(x, x, x)).value)) == tuple(x.shape)


def judged_prefix(made: Implementation, function: Callable[..., Any]) -> set[str]:
    """Its parameter for a prefix, if that is judged by another way to call it."""
    name = prefix_number(function)
    return {name} if name and BEHIND.format(name) in made.alternatives else set()


def with_prefixes(check: ClaimCheck, function: Callable[..., Any]) -> dict[str, RenamedCall]:
    """The function as it is called with other prefixes, where its text states what they show, or they are seen to.

    A prefix of which a query sees no more than the keys up to its own is none to that query.
    """
    call, name = check.function, prefix_number(function)
    if not name or not isinstance(call, RenamedCall):
        return {}
    flag, premises = call.options.spelled.get("is_causal", ""), check.claims.premises
    if not (flag or premises.causal) or premises.window_left is not None:
        return {}
    stated = states_prefixes(as_written(function), name)
    moves = not (premises.rotary_base or premises.alibi)
    ways = {BEHIND.format(name): False, **({AMID.format(name): True} if moves else {})}
    made = {way: _taken(check, OfPrefixes(function, name, flag, amid, each=False)) for way, amid in ways.items()}
    found = {way: other for way, other in made.items() if other is not None and (stated or _is_same(check, other))}
    return found if len(found) == len(ways) else {}


def _taken(check: ClaimCheck, of_one: OfPrefixes) -> RenamedCall | None:
    """The call with a number of its own for each sample, or with one for all; the former where text has it alone."""
    call = check.function
    assert isinstance(call, RenamedCall)
    said = " ".join(said_of(as_written(of_one.function), of_one.name))
    several = (True, False) if OF_SAMPLES.search(said) else (False, True)
    calls = (replace(call, function=replace(of_one, each=each)) for each in several)
    return next((each for each in calls if not replace(check, function=each).run(_case(check)).error), None)


def _case(check: ClaimCheck) -> Any:
    """A call in which later keys are hidden."""
    square = PLAIN.sized(query_length=PLAIN.sizes.key_length)
    return replace(square, causal=True) if Feature.CAUSAL in check.claims else square


def _is_same(check: ClaimCheck, other: RenamedCall) -> bool:
    case = _case(check)
    return near_outputs(replace(check, function=other).run(case), check.run(case), check.dtype)


def states_prefixes(target: object, name: str) -> bool:
    """Whether its documentation states that all queries see the first keys, of which there are so many."""
    said = [*said_of(target, name), *(each for each in sentences_of(target) if "prefix" in each.lower())]
    compared = re.compile(rf"\b\w+ ?<=? ?{re.escape(name)}\b")
    of_all = any(SEEN_BY_ALL.search(each) or compared.search(each) for each in said)
    return of_all and not any(map(OF_MEMORY.search, said))
