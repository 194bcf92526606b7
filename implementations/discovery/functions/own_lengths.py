"""Lengths beyond which a function does something else by a number of its own, such as that of its training."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck, near_outputs
from attention_conformance.implementations.discovery.functions.block_sizes import block_names
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall
from attention_conformance.implementations.discovery.functions.size_limits import with_longest
from attention_conformance.implementations.discovery.signatures import signature_of

FEW = PLAIN.sizes.key_length // 2
SHORT = PLAIN.sized(query_length=FEW, key_length=FEW)


def within_own_length(check: ClaimCheck, function: Callable[..., Any], known: Collection[str]) -> ClaimCheck:
    """The check with no more tokens than a number by default that changes the answers to longer sequences alone."""
    call = check.function
    if not isinstance(call, RenamedCall):
        return check
    taken = {*call.options.spelled.values(), *call.options.always, *block_names(function), *known}
    for parameter in [*signature_of(function).parameters.values()][3:]:
        default = parameter.default
        named = type(default) is int and default > PLAIN.sizes.key_length and parameter.name not in taken
        if named and _bounds(check, call, parameter.name):
            note = f"{parameter.name!r} changes what has more than {default} tokens, which is not judged"
            return with_longest(check, default, "before it does something else").stating(note)
    return check


def _bounds(check: ClaimCheck, call: RenamedCall, name: str) -> bool:
    """Whether this number, where it is the length or more, changes nothing, and does where it is less."""

    def given(number: int) -> ClaimCheck:
        return replace(check, function=call.giving({name: number}))

    whole, short, length = check.run(PLAIN), check.run(SHORT), PLAIN.sizes.key_length
    if whole.error or short.error:
        return False
    beyond, at_length, at_short = given(FEW).run(PLAIN), given(length).run(PLAIN), given(FEW).run(SHORT)
    if beyond.error or at_length.error or at_short.error:
        return False
    alike = near_outputs(at_length, whole, check.dtype) and near_outputs(at_short, short, check.dtype)
    return alike and not near_outputs(beyond, whole, check.dtype)
