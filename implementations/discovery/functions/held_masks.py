"""Masks inside of objects: a parameter that reads its mask as an attribute of what it is given, and takes no array."""

from __future__ import annotations

from dataclasses import replace

from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, ClaimCheck
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall
from attention_conformance.spec.features import Feature


def with_held_mask(check: ClaimCheck) -> ClaimCheck:
    """The check of a call that gives its mask in an object, by the attribute that is read and that no array has.

    The attribute is named as one of masks: what else is read of it is unknown.
    """
    call = check.function
    assert isinstance(call, RenamedCall)
    kinds = {Feature.BOOL_MASK: MASKED, Feature.FLOAT_MASK: BIASED}
    cases = [case for feature, case in kinds.items() if feature in check.claims]
    wanted = {check.run(case).wanted for case in cases}
    name = wanted.pop() if len(wanted) == 1 else ""
    if "mask" not in name:
        return check
    held = replace(check, function=replace(call, held_as=name))
    own = call.mask_name
    return held if all(held.run(case).wanted for case in cases) else held.stating(f"its {own!r} is read as .{name}")
