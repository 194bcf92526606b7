"""Masks as flags: where it matters alone that a mask is given, as in a model that gives a triangle or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    CAUSAL,
    MASKED,
    NO_EFFECT,
    RAISES,
    ClaimCheck,
    near_outputs,
)
from attention_conformance.implementations.discovery.documented import states_booleans_alone, states_numbers_alone
from attention_conformance.implementations.discovery.modules.mask_effects import PADDED
from attention_conformance.implementations.discovery.modules.module_masks import is_published, shaped
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.implementations.discovery.vocabulary import OPTIONS
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.modules.forwards import ModuleCall

KINDS = {Feature.BOOL_MASK: MASKED, Feature.FLOAT_MASK: BIASED}


def is_a_flag(check: ClaimCheck, call: ModuleCall) -> bool:
    """Whether a mask changes the answer, and one that hides nothing does so in the same way."""
    kinds = [fit(shaped(case, call.form), check.claims) for feature, case in KINDS.items() if feature in check.claims]
    return bool(kinds) and all(not isinstance(case, Unsupported) and _presence_alone(check, case) for case in kinds)


def _presence_alone(check: ClaimCheck, fitted: Case) -> bool:
    problem = build(fitted, check.dtype).forward_only()
    assert problem.attn_mask is not None
    nothing = np.full_like(problem.attn_mask, problem.attn_mask.dtype == bool)
    plain, some, every = (check.answer(problem.but(attn_mask=mask)) for mask in (None, problem.attn_mask, nothing))
    if plain.error or some.error or every.error:
        return False
    return near_outputs(some, every, check.dtype) and not near_outputs(plain, every, check.dtype)


def without_flags(call: ModuleCall, check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check without a mask of an unpublished name that is a flag, and a note."""
    if is_published(call) or not is_a_flag(check, call):
        return check, []
    lost = {*KINDS, Feature.MASK_GRADIENT}
    return check.without(lost), [unclaimed("masks", "only whether one is given matters, and not what it holds")]


def without_unstated(kind: object, call: ModuleCall, check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check without the kind of masks that its names promise, where its documentation has the other alone."""
    spelled, claims = call.options.spelled, check.claims
    own, added = spelled.get("bool_mask", ""), spelled.get("float_mask", "")
    if own and Feature.BOOL_MASK in claims and states_numbers_alone(kind, own):
        return check.without({Feature.BOOL_MASK}), [unclaimed("bool-mask", f"by its documentation {own!r} is added")]
    if own and own == added and Feature.FLOAT_MASK in claims and states_booleans_alone(kind, own):
        note = unclaimed("float-mask", f"by its documentation {own!r} is boolean")
        return check.without({Feature.FLOAT_MASK, Feature.MASK_GRADIENT}), [note]
    return check, []


def without_swallowed(call: ModuleCall, check: ClaimCheck, promised: bool) -> tuple[ClaimCheck, list[str]]:
    """The check without what only a **kwargs takes, and that raises, or changes nothing if it is not promised."""
    cases = {"bool_mask": MASKED, "float_mask": BIASED, "key_padding_mask": PADDED, "is_causal": CAUSAL}
    features = {f: cases[o] for o in call.options.swallowed & set(cases) for f in OPTIONS[o].features}
    features = {feature: case for feature, case in features.items() if feature in check.claims}
    raising = {feature for feature, case in features.items() if check.run(case).error}
    ignored = {f for f, case in features.items() if f not in raising and not promised and check.ignores(case)}
    lost = {NO_EFFECT: ignored, RAISES: raising}
    notes = [unclaimed(", ".join(sorted(names)), why) for why, names in lost.items() if names]
    return _without_refused(call, check.without(ignored | raising), notes)


def _without_refused(call: ModuleCall, check: ClaimCheck, notes: list[str]) -> tuple[ClaimCheck, list[str]]:
    """The check without a causal flag, or masks of any kind, that its own statements refuse, and notes.

    Whatever the names promise.
    """
    for cases in ({Feature.CAUSAL: CAUSAL}, KINDS):
        outcomes = {each: check.run(shaped(case, call.form)) for each, case in cases.items() if each in check.claims}
        if outcomes and all(each.refused for each in outcomes.values()):
            error = next(iter(outcomes.values())).error
            notes = [*notes, unclaimed(", ".join(outcomes), error)]
            lost = {*outcomes} | ({Feature.MASK_GRADIENT} if cases is KINDS else set())
            check = check.without(lost)
    return check, notes
