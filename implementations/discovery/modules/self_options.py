"""Options of self-attention alone, such as a causal flag that says nothing of the tokens of another sequence."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from attention_conformance.implementations.api.contract import Claims, Fit, Unsupported
from attention_conformance.implementations.api.fitting import fit, required
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    CAUSAL,
    MASKED,
    OPTION_CASES,
    ClaimCheck,
)
from attention_conformance.implementations.discovery.documented import said_of
from attention_conformance.implementations.discovery.extra_options import EXTRA_OPTIONS, UNSEEN
from attention_conformance.implementations.discovery.modules.mask_effects import PADDED
from attention_conformance.implementations.discovery.vocabulary import OPTIONS
from attention_conformance.spec.cases import Case, Sharing
from attention_conformance.spec.features import Feature

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.modules.forwards import ModuleCall

CASES = {
    Feature.CAUSAL: CAUSAL,
    **{o.feature: OPTION_CASES[o.feature] for o in EXTRA_OPTIONS if o.feature not in UNSEEN},
}
"""A case of each option that may be left out of calls with another sequence; for masks, see `masks_of_itself`."""
OF_MASKS = {Feature.BOOL_MASK: MASKED, Feature.FLOAT_MASK: BIASED, Feature.KEY_PADDING: PADDED}
OF_CONTEXT = {Feature.CROSS, Feature.KEY_VALUE}
"""What another sequence may be claimed by."""
OF_OTHERS = r"\b(?:cross(?:[- ]?attention)?|encoder|memory|both|either|always|whether or not|any case"
EXCLUDED = re.compile(
    r"\b(?:only|alone|not|no|n't|never|without|unless|ignored?|ignores|unused|unaffected|none|irrelevant|meaningless"
    r"|skipped|absent|omitted|off)\b|\bself[- ]attention:",
    re.IGNORECASE,
)
"""Words that leave something out of what is promised."""


def in_self_attention_alone(call: ModuleCall, kind: object, check: ClaimCheck) -> ClaimCheck:
    """The check with options that change nothing next to another sequence, or are refused there, without it alone.

    One that is promised for both kinds of attention is claimed as it was.
    """
    if not check.claims.alone or Feature.CROSS not in check.claims:
        return check
    alone = without_context(check)
    names = {each: name for each in CASES if each in check.claims and (name := _name_of(call, each))}
    given = {each: name for each, name in names.items() if acts_alone(check, alone, CASES[each])}
    found = {each: name for each, name in given.items() if not promised_for_both(call, kind, name)}
    stated = (f"its {name!r} acts in self-attention alone" for name in sorted({*found.values()}))
    return replace(check, claims=alone_with(check.claims, found.keys())).stating(*stated)


def acts_alone(check: ClaimCheck, alone: ClaimCheck, case: Case) -> bool:
    """Whether it changes answers in self-attention, and none next to another sequence."""
    left_out = check.ignores(case) or check.run(case).refused
    return left_out and not alone.run(case).error and not alone.ignores(case)


def alone_with(claims: Claims, features: Set[Feature]) -> Claims:
    """The claims with these features in self-attention alone."""
    return replace(claims, fit=partial(fit_alone, claims.fit, frozenset(features))) if features else claims


def is_alone_with(claims: Claims, feature: Feature) -> bool:
    """Whether a feature is claimed in self-attention alone, by claims that have another sequence, too."""
    case = {**CASES, **OF_MASKS}.get(feature)
    fitted = fit(case, claims) if case is not None and Feature.CROSS in claims else None
    return isinstance(fitted, Case) and fitted.module is not None and fitted.module.sharing is Sharing.SELF


def fit_alone(own: Fit, features: Set[Feature], case: Case) -> Case | Unsupported:
    """The fit of one that has these features in self-attention alone."""
    fitted = own(case)
    if isinstance(fitted, Unsupported) or fitted.module is None or not features & {*required(fitted)}:
        return fitted
    tokens = fitted.sizes.key_length
    return replace(fitted.sized(query_length=tokens), module=replace(fitted.module, sharing=Sharing.SELF))


def promised_for_both(call: ModuleCall, kind: object, name: str) -> bool:
    """Whether what is said of an option names another sequence, and leaves nothing out there."""
    context = call.keywords[1] if len(call.keywords) > 1 else ""
    of_others = re.compile(rf"{OF_OTHERS}{f'|{re.escape(context)}' if context else ''})\b", re.IGNORECASE)
    said = [part for part in said_of(kind, name) if not is_signature(part)]
    return any(of_others.search(part) and not EXCLUDED.search(part) for part in said)


def is_signature(text: str) -> bool:
    """Whether it is a call with the names of all parameters."""
    return re.match(r"\W*(?:def )?\w+\([^()]*\)\W*(?:->.*)?$", text) is not None


def _name_of(call: ModuleCall, feature: Feature) -> str:
    """Its own name of an option; empty for none that it has."""
    spelled = call.options.named.spelled
    return next((name for option, name in spelled.items() if feature in OPTIONS[option].features), "")


def without_context(check: ClaimCheck) -> ClaimCheck:
    """The check of calls without another sequence alone."""
    return check.without(OF_CONTEXT)
