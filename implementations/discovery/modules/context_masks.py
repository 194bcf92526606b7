"""Context masks: what a module that may be given another sequence does with masks of that and of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.discovery.claim_checks import BIASED, MASKED, PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.modules.mask_effects import PADDED, has_effect
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.cases import Case, MaskKind, Padding, Sharing
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.modules.forwards import ModuleCall

ALONE = {Feature.BOOL_MASK: ("bool_mask", MASKED), Feature.FLOAT_MASK: ("float_mask", BIASED)}
"""The option and a case of each kind of mask."""
MASKS = ("bool_mask", "float_mask", "key_padding_mask")
LONGER = 24
"""Keys, more than the queries of the plain case."""
SQUARE = {"query_length": 5, "key_length": 5}
BOTH_MASKS = "with an open mask of its own tokens next to that of the context"


def with_own_mask_open(call: ModuleCall, check: ClaimCheck) -> ModuleCall:
    """The call with a mask of its own tokens that hides none, where that of the context is read next to it alone."""
    if not call.of_context or not set(call.of_context) <= {*call.options.spelled.values()}:
        return call
    opened = replace(call, own_open=True)

    def hides(each: ModuleCall) -> bool:
        of_keys = each.options.with_masks_as("key_padding_mask")
        way = replace(each, options=of_keys, polarity=Polarity.MAY_ATTEND)
        return has_effect(replace(check.claiming({Feature.KEY_PADDING}), function=way), PADDED)

    return opened if hides(opened) and not hides(call) else call


def with_both_masks(call: ModuleCall, check: ClaimCheck) -> ModuleCall | None:
    """The call with a mask of its own tokens, too, that hides none, next to that of the context; None for no such.

    That mask is of its own tokens where it hides them in self-attention, (B, L): it has no say on those of a context.
    What a statement of its own refuses is none.
    """
    spelled = call.options.spelled
    named = {spelled.get(each) for each in ("bool_mask", "key_padding_mask")}
    if len(call.of_context) != 1 or call.own_open or not {*call.of_context} & named:
        return None
    options = call.options.with_masks_as("key_padding_mask") if "bool_mask" in spelled else call.options
    claimed = check.claiming({Feature.KEY_PADDING})
    alone = replace(call.alone_with_itself(), options=options, of_context={})
    own = replace(claimed.without({Feature.CROSS, Feature.KEY_VALUE}), function=alone)
    both = replace(call, own_open=True)
    outcome = replace(claimed, function=replace(both, options=options)).run(PADDED)
    return None if outcome.refused or not has_effect(own, PADDED) else both


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


def of_context_alone(call: ModuleCall, check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check without masks in self-attention, where these are masks of another sequence by their names; a note.

    A mask of another name that has an effect next to another sequence has to have it without.
    """
    from attention_conformance.implementations.discovery.modules.neutrals import OF_KEYS  # imports torch

    names = {call.options.spelled[option] for option in MASKS if option in call.options.spelled}
    if not call.optional or call.of_context or not names or not all(words_of(name) & OF_KEYS for name in names):
        return check, []
    alone, every = (
        check.without({Feature.CROSS, Feature.KEY_VALUE}),
        {**dict(ALONE.values()), "key_padding_mask": PADDED},
    )
    given = [every[option] for option in MASKS if option in call.options.spelled]
    if not all(alone.run(case).error or alone.ignores(case) for case in given):
        return check, []
    claims = replace(check.claims, fit=partial(fit_of_context, check.claims.fit))
    return replace(check, claims=claims), [
        unclaimed("masks in self-attention", f"{' and '.join(sorted(names))} is of another sequence")
    ]


def fit_of_context(fit: Fit, case: Case) -> Case | Unsupported:
    """The fit of one whose masks are of another sequence alone."""
    fitted = fit(case)
    hidden = not isinstance(fitted, Unsupported) and (fitted.mask, fitted.padding) != (MaskKind.NONE, Padding.NONE)
    if not isinstance(fitted, Case) or not hidden or fitted.module is None or fitted.module.sharing is not Sharing.SELF:
        return fitted
    return replace(fitted, module=replace(fitted.module, sharing=Sharing.KEY_VALUE))


def fit_alike(fit: Fit, case: Case) -> Case | Unsupported:
    """The fit of one whose masks are of as many keys as queries."""
    fitted = fit(case)
    if isinstance(fitted, Unsupported) or fitted.mask is MaskKind.NONE:
        return fitted
    length = min(fitted.sizes.query_length, fitted.sizes.key_length)
    return fit(fitted.sized(query_length=length, key_length=length))
