"""Unknown options: parameters of a function that the suite does not know, and that change its answer."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import CallOutcome
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    MASKED,
    PLAIN,
    ClaimCheck,
    near_outputs,
)
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall
from attention_conformance.implementations.discovery.functions.size_limits import FEW_CAUSAL
from attention_conformance.implementations.discovery.modules.constructor_names import NAMES, Size
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature

WHY = "not judged: the suite does not know it, and it changes the answer"
NO_BASE = "not judged: by its name it is the base of the rotations, and another one changed no answer"
OF_BASES = {"base", *NAMES[Size.BASE]}
FEW = (1, 2, 3)
"""Numbers that are tried: other blocks of keys than usual change no answer."""
LESS = 0.5
ANYTHING = (True, 2, LESS)
"""What is tried where nothing says what may be given, next to arrays of queries and keys, and of tokens."""
WITH_MASKS = {Feature.FLOAT_MASK: BIASED, Feature.BOOL_MASK: MASKED, Feature.CAUSAL: FEW_CAUSAL[0]}
"""Calls in which an option may matter that changes no plain one."""


def unknown_options(check: ClaimCheck, function: Callable[..., object], known: Collection[str]) -> dict[str, str]:
    """Those that change the answer to a plain call or to one with a mask, each with the reason why it is not judged."""
    call = check.function
    if not isinstance(call, RenamedCall):
        return {}
    taken = {*call.options.spelled.values(), *call.options.always, *call.options.other_masks, *known}
    named = [p for p in [*signature_of(function).parameters.values()][3:] if p.name not in taken]
    given = {p.name: others for p in named if (others := [_given(check, call, p.name, each) for each in _others(p)])}
    cases = [case for feature, case in WITH_MASKS.items() if feature in check.claims] if given else []
    usual = {case: outcome for case in (PLAIN, *cases) if given and not (outcome := check.run(case)).error}
    changing = {name for name, others in given.items() if any(_changes(each, usual) for each in others)}
    bases = [p.name for p in named if p.name in OF_BASES] if check.claims.premises.rotary_base else []
    return dict.fromkeys(bases, NO_BASE) | dict.fromkeys(changing, WHY)


def _others(parameter: inspect.Parameter) -> Iterator[object]:
    """Other values than the one by default, where that says what may be given."""
    default = parameter.default
    if default is None:
        yield from (*ANYTHING, *ARRAYS)
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        return
    if type(default) is bool:
        yield not default
    elif type(default) is int:
        yield from (number for number in FEW if number != default)
    elif type(default) is float:
        yield LESS * default or LESS


def _of_pairs(query: Any, key: Any) -> Any:
    """Booleans (Lq, Lk), a few of each row False."""
    return _like(query, np.arange(query.shape[-2])[:, None] % 3 != np.arange(key.shape[-2]) % 3)


def _added(query: Any, key: Any) -> Any:
    """Numbers (Lq, Lk)."""
    return _like(query, np.sin(np.arange(query.shape[-2] * key.shape[-2]).reshape(-1, key.shape[-2])), numbers=True)


def _of_tokens(query: Any, key: Any) -> Any:
    """Integers (B, Lk), in each row down to 0."""
    return _like(query, np.tile(np.arange(key.shape[-2])[::-1], (query.shape[0], 1)))


ARRAYS = (_of_pairs, _added, _of_tokens)


def _like(query: Any, array: Any, numbers: bool = False) -> Any:
    """An array of the kind, and if it has numbers of the dtype, of the query."""
    if not hasattr(query, "new_tensor"):
        return array.astype(query.dtype) if numbers else array
    own = sys.modules["torch"].from_numpy(array).to(query.device)
    return own.to(query.dtype) if numbers else own


@dataclass(frozen=True)
class WithArray:
    """A function that is given an array, made of its query and key, in each call."""

    function: Callable[..., Any]
    name: str
    made: Callable[[Any, Any], Any]

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        return self.function(query, key, value, **{**options, self.name: self.made(query, key)})


def _given(check: ClaimCheck, call: RenamedCall, name: str, value: object) -> ClaimCheck:
    """The check of the function with this value in each call."""
    if value in ARRAYS:
        return replace(check, function=replace(call, function=WithArray(call.function, name, value)))
    options = replace(call.options, always={**call.options.always, name: value})
    return replace(check, function=replace(call, options=options))


def _changes(check: ClaimCheck, usual: Mapping[Case, CallOutcome[Any]]) -> bool:
    """Whether it changes one of these answers, as a factor of what a mask adds changes that of a mask alone."""
    outcomes = ((check.run(case), before) for case, before in usual.items())
    return any(not other.error and not near_outputs(other, before, check.dtype) for other, before in outcomes)
