"""Context masks: what a module that may be given another sequence does with masks of that and of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.cases import Case, MaskKind
from attention_conformance.spec.features import Feature

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.modules.forwards import ModuleCall

ALONE = {Feature.BOOL_MASK: ("bool_mask", MASKED), Feature.FLOAT_MASK: ("float_mask", BIASED)}
"""The option and a case of each kind of mask."""
LONGER = 24
"""Keys, more than the queries of the plain case."""
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


def of_itself_alone(call: ModuleCall, check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check with masks between sequences of one length alone, where others raise next to another sequence; a note.

    A mask (T, T) of the module's own tokens has no place for those of the other sequence.
    """
    given = [case for feature, (_, case) in ALONE.items() if feature in check.claims]
    longer = [check.run(case.sized(key_length=LONGER)).error for case in given]
    answers = call.optional and not call.of_context and not check.run(PLAIN.sized(key_length=LONGER)).error
    if not given or not answers or not all(longer) or any(check.run(case).error for case in given):
        return check, []
    claims = replace(check.claims, fit=partial(fit_alike, check.claims.fit))
    return replace(check, claims=claims), [unclaimed("masks between other lengths", longer[0])]


def fit_alike(fit: Fit, case: Case) -> Case | Unsupported:
    """The fit of one whose masks are of as many keys as queries."""
    fitted = fit(case)
    if isinstance(fitted, Unsupported) or fitted.mask is MaskKind.NONE:
        return fitted
    length = min(fitted.sizes.query_length, fitted.sizes.key_length)
    return fit(fitted.sized(query_length=length, key_length=length))
