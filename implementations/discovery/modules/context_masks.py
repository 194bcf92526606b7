"""Context masks: what a module that may be given another sequence does with the mask of that sequence alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, ClaimCheck
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.features import Feature

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.modules.forwards import ModuleCall

ALONE = {Feature.BOOL_MASK: ("bool_mask", MASKED), Feature.FLOAT_MASK: ("float_mask", BIASED)}
"""The option and a case of each kind of mask."""
SQUARE = {"query_length": 5, "key_length": 5}


def without_unread(call: ModuleCall, check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check without masks of another sequence that are read only next to the module's own, and a note.

    Where the module reads no mask in self-attention either, it ignores its masks, which is a mistake.
    """
    spelled = call.options.spelled
    given = {f: case for f, (o, case) in ALONE.items() if f in check.claims and spelled.get(o) in call.of_context}
    if not given or not all(map(check.ignores, given.values())):
        return check, []
    own = replace(check, function=replace(call, inputs=1, keywords=(), optional=False, of_context={}))
    if all(own.ignores(case.sized(**SQUARE)) for case in given.values()):
        return check, []
    names = " and ".join(sorted({*call.of_context.values()}))
    lost = {*given} | ({Feature.MASK_GRADIENT} if Feature.FLOAT_MASK in given else set())
    return check.without(lost), [unclaimed("masks", f"{names} has no effect without the module's own mask")]
