"""Masks and biases of functions under names that say nothing of them: keys that they hide change no answer."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from attention_conformance.implementations.discovery.claim_checks import MASKED, ClaimCheck
from attention_conformance.implementations.discovery.cut_masks import is_cut
from attention_conformance.implementations.discovery.functions.function_calls import ArrayKind, RenamedCall
from attention_conformance.implementations.discovery.functions.function_masks import (
    BIAS_FORMS,
    FORMS,
    hides_padding,
    in_form,
    ways_of_keys,
)
from attention_conformance.implementations.discovery.modules.mask_effects import has_effect
from attention_conformance.implementations.discovery.modules.module_masks import shaped
from attention_conformance.implementations.discovery.rows_without_keys import ADDED
from attention_conformance.implementations.discovery.signatures import Options, signature_of
from attention_conformance.implementations.discovery.vocabulary import BOOLEAN_MASKS, KNOWN_NAMES
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature


def with_mask_as_seen(check: ClaimCheck, kind: ArrayKind) -> tuple[ClaimCheck, bool]:
    """The check with the first parameter that hides keys as its boolean mask, where no name is one of a mask.

    Looked at are those that `_unknown` gives. Also: whether there is one.
    """
    call = check.function
    assert isinstance(call, RenamedCall)
    if BOOLEAN_MASKS & call.options.spelled.keys():
        return check, False
    tried = (_masked_by(check, call, name) for name in _unknown(call))
    found = next((each for each in tried if _hides(each, kind)), None)
    return (check, False) if found is None else (found, True)


def with_pairs_as_seen(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck:
    """The check with the first parameter that hides keys from queries as its boolean mask, next to a mask of keys."""
    call = check.function
    assert isinstance(call, RenamedCall)
    if "key_padding_mask" not in call.options or "bool_mask" in call.options:
        return check
    claimed = check.claims.conventions.bool_mask
    for name, form, polarity in product(_unknown(call), FORMS, Polarity):
        masked = _masked_by(check, call, name)
        own: Any = masked.function
        hides = call.hides_padding is (polarity is claimed)  # what True means there stays as it is
        formed = in_form(masked, kind, replace(own, form=form, hides_padding=hides), polarity)
        if has_effect(formed, shaped(MASKED, form)) and hides_padding(formed) and not is_cut(formed, MASKED):
            return formed
    return check


def with_bias_as_seen(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck:
    """The check with the first parameter whose numbers act as added to the scores, where no known one is claimed to."""
    call = check.function
    assert isinstance(call, RenamedCall)
    if Feature.FLOAT_MASK in check.claims:
        return check
    added = ((name, _added_by(check, call, name, kind)) for name in _unknown(call))
    name, found = next(((name, each) for name, each in added if each is not None), ("", None))
    return check if found is None else found.stating(f"numbers are added as its {name!r}")


def _added_by(check: ClaimCheck, call: RenamedCall, name: str, kind: ArrayKind) -> ClaimCheck | None:
    """The check of the function with this parameter for added numbers, in the first form in which they act so."""
    spelled, defaults = {**call.options.spelled, "float_mask": name}, {**call.options.defaults, name: None}
    options = replace(call.options, spelled=spelled, defaults=defaults)
    claiming, polarity = check.claiming({Feature.FLOAT_MASK}), check.claims.conventions.bool_mask
    for form in BIAS_FORMS:
        made = in_form(claiming, kind, replace(call, options=options, bias_form=form), polarity)
        if has_effect(made, shaped(ADDED, form)) and not is_cut(made, ADDED):
            return made
    return None


def _unknown(call: RenamedCall) -> list[str]:
    """Its parameters after the inputs that are None by default, and whose names are unknown."""
    own = call.options
    taken = {*own.spelled.values(), *own.always, *own.misspelled, *KNOWN_NAMES}
    later = [*signature_of(call.function).parameters.values()][3:]
    return [p.name for p in later if p.default is None and p.name not in taken]


def _masked_by(check: ClaimCheck, call: RenamedCall, name: str) -> ClaimCheck:
    """The check of the function with this parameter as its mask, also of numbers where no other takes them."""
    own: Options = call.options
    masks = {option: name for option in ("bool_mask", "float_mask") if option not in own.spelled}
    others = tuple(each for each in own.other_masks if each != name)
    options = replace(own, spelled={**own.spelled, **masks}, defaults={**own.defaults, name: None}, other_masks=others)
    features = {Feature.BOOL_MASK} | ({Feature.FLOAT_MASK, Feature.MASK_GRADIENT} if "float_mask" in masks else set())
    return replace(check, function=replace(call, options=options)).claiming(features)


def _hides(check: ClaimCheck, kind: ArrayKind) -> bool:
    call = check.function
    assert isinstance(call, RenamedCall)
    ways = product(FORMS, Polarity)
    formed = ((in_form(check, kind, replace(call, form=form), each), form) for form, each in ways)
    return any(has_effect(each, shaped(MASKED, form)) for each, form in formed) or any(
        map(hides_padding, ways_of_keys(check, kind, Polarity))
    )
