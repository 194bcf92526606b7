"""Masks of modules under names that say nothing of masks: keys that they hide change no answer."""

from __future__ import annotations

from dataclasses import replace

from attention_conformance.implementations.discovery.claim_checks import MASKED, ClaimCheck
from attention_conformance.implementations.discovery.modules.forwards import ModuleCall
from attention_conformance.implementations.discovery.modules.left_out import never_given
from attention_conformance.implementations.discovery.modules.mask_effects import PADDED, has_effect
from attention_conformance.implementations.discovery.modules.module_masks import shaped, with_mask_form
from attention_conformance.implementations.discovery.modules.neutrals import POSITION_WORDS
from attention_conformance.implementations.discovery.signatures import role
from attention_conformance.implementations.discovery.vocabulary import BOOLEAN_MASKS, words_of
from attention_conformance.spec.features import Feature

OF_MASKS = {"bool_mask": {Feature.BOOL_MASK}, "float_mask": {Feature.FLOAT_MASK, Feature.MASK_GRADIENT}}


def with_unnamed_mask(call: ModuleCall, check: ClaimCheck, kind: object) -> tuple[ModuleCall, ClaimCheck]:
    """The call with the first parameter that hides keys as its mask, where no name is one of a mask; and its claims.

    Looked at are those that are None by default, and have unknown names.
    """
    if BOOLEAN_MASKS & call.options.spelled.keys():
        return call, check
    for name in never_given(kind, call):
        if role(name) or words_of(name) & POSITION_WORDS:
            continue
        masks = {option: name for option in OF_MASKS if option not in call.options.spelled}
        others = tuple(each for each in call.options.other_masks if each != name)
        options = replace(call.options, spelled={**call.options.spelled, **masks}, other_masks=others)
        named = replace(call, options=options)
        claimed = check.claiming({feature for option in masks for feature in OF_MASKS[option]})
        formed, seen, _ = with_mask_form(named, claimed, kind, observed=True)
        seen = replace(seen, function=formed)
        if has_effect(seen, shaped(MASKED, formed.form)) or has_effect(seen, PADDED):
            return named, claimed
    return call, check
