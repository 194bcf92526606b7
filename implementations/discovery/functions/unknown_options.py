"""Unknown options: parameters of a function that the suite does not know, and that change its answer."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

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
from attention_conformance.implementations.discovery.values_tried import ANYTHING, ARRAYS, NOT_JUDGED, other_values
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature

NO_BASE = "not judged: by its name it is the base of the rotations, and another one changed no answer"
OF_BASES = {"base", *NAMES[Size.BASE]}
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
    return dict.fromkeys(bases, NO_BASE) | dict.fromkeys(changing, NOT_JUDGED)


def _others(parameter: inspect.Parameter) -> Iterator[object]:
    """Other values than the one by default, where that says what may be given."""
    if parameter.default is None:
        yield from (*ANYTHING, *ARRAYS)
    elif parameter.kind is not parameter.POSITIONAL_ONLY:
        yield from other_values(parameter.default)


def _like(query: Any, array: NDArray[Any]) -> Any:
    """An array of the kind, and if it has numbers of the dtype, of the query."""
    numbers = array.dtype.kind == "f"
    if not hasattr(query, "new_tensor"):
        return array.astype(query.dtype) if numbers else array
    own = sys.modules["torch"].from_numpy(array).to(query.device)
    return own.to(query.dtype) if numbers else own


@dataclass(frozen=True)
class WithArray:
    """A function that is given an array, of the sizes of its query and key, in each call."""

    function: Callable[..., Any]
    name: str
    made: Callable[[int, int, int], NDArray[Any]]

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        made = _like(query, self.made(query.shape[0], query.shape[-2], key.shape[-2]))
        return self.function(query, key, value, **{**options, self.name: made})


def _given(check: ClaimCheck, call: RenamedCall, name: str, value: object) -> ClaimCheck:
    """The check of the function with this value in each call."""
    if callable(value):  # one of `ARRAYS`
        return replace(check, function=replace(call, function=WithArray(call.function, name, value)))
    return replace(check, function=call.giving({name: value}))


def _changes(check: ClaimCheck, usual: Mapping[Case, CallOutcome[Any]]) -> bool:
    """Whether it changes one of these answers, as a factor of what a mask adds changes that of a mask alone."""
    outcomes = ((check.run(case), before) for case, before in usual.items())
    return any(not other.error and not near_outputs(other, before, check.dtype) for other, before in outcomes)
