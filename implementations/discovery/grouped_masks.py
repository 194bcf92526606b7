"""Grouped masks: whether a mask of each query head is taken where several of these share a head of keys.

No name promises an axis of heads: scores may have one of groups in its place, and none for such a mask to lie along.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, OPTION_CASES, ClaimCheck
from attention_conformance.spec.cases import Case, MaskKind, MaskShape
from attention_conformance.spec.features import Feature

OF_HEADS = (MaskShape.FULL, MaskShape.HEAD, MaskShape.EACH_KEYS, MaskShape.HEADS_ONLY)
"""Masks with an axis of heads."""
WHY = "a mask of each head is not taken where heads share keys"


def takes_one_head_alone(each: ClaimCheck, one: ClaimCheck) -> bool:
    """Whether, where heads share keys, masks of each head raise as `each` gives them, and none of all as `one` does."""
    kinds = {Feature.BOOL_MASK: MASKED, Feature.FLOAT_MASK: BIASED}
    masked = next((case for feature, case in kinds.items() if feature in each.claims), None)
    if masked is None or Feature.GROUPED not in each.claims:
        return False
    grouped = replace(masked, sizes=OPTION_CASES[Feature.GROUPED].sizes)
    whole, shared = (replace(grouped, mask_shape=shape) for shape in (MaskShape.FULL, MaskShape.SAMPLE))
    return bool(each.run(whole).error) and not one.run(shared).error


def without_masks_of_heads(check: ClaimCheck) -> ClaimCheck:
    """The check without masks of each head where heads share keys, if only those of all heads are taken there."""
    if not takes_one_head_alone(check, check):
        return check
    kept = partial(fit_masks_of_all_heads, check.claims.fit)
    return replace(check, claims=replace(check.claims, fit=kept)).stating(WHY)


def fit_masks_of_all_heads(before: Fit, case: Case) -> Case | Unsupported:
    """The fit of one that takes such masks only where each head has keys of its own."""
    shared = case.sizes.kv_heads != case.sizes.num_heads
    of_heads = case.mask is not MaskKind.NONE and case.mask_shape in OF_HEADS
    return Unsupported(WHY) if shared and of_heads else before(case)
