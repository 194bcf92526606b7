"""Masks that do the opposite of what their documentation plainly states: judged by what that states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attention_conformance.implementations.discovery.claim_checks import MASKED, ClaimCheck
from attention_conformance.implementations.discovery.documented_masks import unmistakable_polarity
from attention_conformance.implementations.discovery.modules.mask_effects import PADDED, has_effect
from attention_conformance.implementations.discovery.modules.module_masks import shaped
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.modules.forwards import ModuleCall

MASKS = ("bool_mask", "key_padding_mask")
PROMISED = {"key_padding_mask"}
"""Names that state what True means: those of torch.nn.MultiheadAttention alone."""
MEANINGS = {Polarity.MASKED_OUT: "hides a key", Polarity.MAY_ATTEND: "shows a key"}


def with_stated_meaning(call: ModuleCall, check: ClaimCheck, kind: object) -> tuple[ModuleCall, ClaimCheck, str]:
    """The call and the check with what True is plainly stated to mean, where a mask is seen to do the opposite.

    Who follows such a statement gets wrong answers. Names that promise a meaning are judged by that in any case. The
    name of the mask comes with it, empty where nothing has changed.
    """
    names = [call.options.spelled[each] for each in MASKS if each in call.options.spelled]
    own = next(iter(names), "")
    if not own or own in PROMISED or not _has_its_effect(call, check):
        return call, check, ""
    stated = {unmistakable_polarity(kind, name) for name in (*names, *call.of_context.values())} - {None}
    if len(stated) != 1 or call.polarity in stated:
        return call, check, ""
    (meaning,) = (each for each in stated if each is not None)
    conventions = replace(check.claims.conventions, bool_mask=meaning)
    call = replace(call, polarity=meaning)
    check = replace(check, function=call, claims=replace(check.claims, conventions=conventions))
    return call, check.stating(f"by its documentation True in {own!r} {MEANINGS[meaning]}"), own


def _has_its_effect(call: ModuleCall, check: ClaimCheck) -> bool:
    """Whether a boolean mask is seen to do what the call takes True for."""
    cases = {Feature.BOOL_MASK: shaped(MASKED, call.form), Feature.KEY_PADDING: PADDED}
    return any(feature in check.claims and has_effect(check, case) for feature, case in cases.items())
