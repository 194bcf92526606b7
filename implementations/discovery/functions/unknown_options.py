"""Unknown options: parameters of a function that the suite does not know, and that change its answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

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
from attention_conformance.implementations.discovery.signatures import signature_of
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature

WHY = "not judged: the suite does not know it, and it changes the answer"
FEW = (1, 2, 3)
"""Numbers that are tried: other blocks of keys than usual change no answer."""
LESS = 0.5
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
    return {name: WHY for name, others in given.items() if any(_changes(each, usual) for each in others)}


def _others(parameter: inspect.Parameter) -> Iterator[object]:
    """Other values than the one by default, where that says what may be given."""
    default = parameter.default
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        return
    if type(default) is bool:
        yield not default
    elif type(default) is int:
        yield from (number for number in FEW if number != default)
    elif type(default) is float:
        yield LESS * default or LESS


def _given(check: ClaimCheck, call: RenamedCall, name: str, value: object) -> ClaimCheck:
    """The check of the function with this value in each call."""
    options = replace(call.options, always={**call.options.always, name: value})
    return replace(check, function=replace(call, options=options))


def _changes(check: ClaimCheck, usual: Mapping[Case, CallOutcome[Any]]) -> bool:
    """Whether it changes one of these answers, as a factor of what a mask adds changes that of a mask alone."""
    outcomes = ((check.run(case), before) for case, before in usual.items())
    return any(not other.error and not near_outputs(other, before, check.dtype) for other, before in outcomes)
