"""Masks of functions under names that say nothing of masks: keys that they hide change no answer."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from attention_conformance.implementations.discovery.claim_checks import MASKED, ClaimCheck
from attention_conformance.implementations.discovery.functions.function_calls import ArrayKind, RenamedCall
from attention_conformance.implementations.discovery.functions.function_masks import (
    FORMS,
    hides_padding,
    in_form,
    ways_of_keys,
)
from attention_conformance.implementations.discovery.modules.mask_effects import has_effect
from attention_conformance.implementations.discovery.modules.module_masks import shaped
from attention_conformance.implementations.discovery.signatures import Options, signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature

HIDING = {"bool_mask", "key_padding_mask"}


def with_mask_as_seen(check: ClaimCheck, kind: ArrayKind) -> tuple[ClaimCheck, bool]:
    """The check with the first parameter that hides keys as its boolean mask, where no name is one of a mask.

    Looked at are those after the inputs that are None by default and have unknown names. Also: whether there is one.
    """
    call = check.function
    assert isinstance(call, RenamedCall)
    if HIDING & call.options.spelled.keys():
        return check, False
    taken = {*call.options.spelled.values(), *call.options.always, *call.options.misspelled, *KNOWN_NAMES}
    for parameter in [*signature_of(call.function).parameters.values()][3:]:
        if parameter.default is None and parameter.name not in taken:
            tried = _masked_by(check, call, parameter.name)
            if _hides(tried, kind):
                return tried, True
    return check, False


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
