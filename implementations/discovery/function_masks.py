"""Masks of functions: in which shape, with which meaning and of which kind one is taken, seen by its effect."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    CAUSAL,
    MASKED,
    NO_EFFECT,
    PLAIN,
    RAISES,
    ClaimCheck,
    near_outputs,
    output_of,
    refused_masks,
)
from attention_conformance.implementations.discovery.function_calls import ArrayKind, RenamedCall
from attention_conformance.implementations.discovery.module_masks import (
    ADDED,
    SHAPES,
    UNPUBLISHED,
    fit_form,
    has_effect,
    shaped,
)
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.implementations.discovery.signatures import Options
from attention_conformance.implementations.discovery.vocabulary import OPTIONS, MaskForm
from attention_conformance.spec.cases import Pattern
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build


def with_mask_form(check: ClaimCheck, kind: ArrayKind) -> ClaimCheck:
    """The check with the form and the polarity in which a mask of an unpublished name has its effect, if any has."""
    claimed, call = check.claims.conventions.bool_mask, check.function
    assert isinstance(call, RenamedCall)
    for polarity in sorted(Polarity, key=lambda each: each is not claimed):
        for form in (MaskForm.GIVEN, MaskForm.SAMPLE, MaskForm.SHARED):
            conventions = replace(check.claims.conventions, bool_mask=polarity)
            claims = replace(check.claims, conventions=conventions)
            claims = replace(claims, fit=partial(fit_form, form=form)) if form in SHAPES else claims
            formed = kind.check(replace(call, form=form), claims, check.device, check.dtype)
            if has_effect(formed, shaped(MASKED, form)):
                return formed
            added = formed.without({Feature.BOOL_MASK})
            if polarity is claimed and has_effect(added, shaped(ADDED, form)) and not _masks(formed, form):
                return added
    return check


def _masks(check: ClaimCheck, form: MaskForm) -> bool:
    """Whether a boolean mask changes more than added numbers would: it may be a mistake."""
    case = shaped(MASKED, form)
    masked, number = check.run(case), check.run(replace(case, pattern=Pattern.ALL))
    return bool(masked.error or number.error) or not near_outputs(number, check.run(PLAIN), check.dtype)


def without_ignored(check: ClaimCheck, options: Options) -> tuple[ClaimCheck, list[str]]:
    """The check without the options that raise or have no effect where only a **kwargs takes them, with notes."""
    cases = {"bool_mask": MASKED, "float_mask": BIASED, "is_causal": CAUSAL, "scale": replace(PLAIN, scale=0.3)}
    swallowed = sorted(options.swallowed & set(cases))
    why = {option: RAISES for option in swallowed if check.run(cases[option]).error}
    why |= {option: NO_EFFECT for option in swallowed if check.ignores(cases[option])}
    if _reads_booleans_only(check, options):
        why.setdefault("float_mask", f"zeros in its {options.spelled['float_mask']!r} mask keys, so that it is boolean")
    elif _numbers_mask(check, options):
        why.setdefault("float_mask", f"numbers in its {options.spelled['float_mask']!r} mask keys, and are not added")
    if "is_causal" not in options.spelled.values():  # with torch's name of its flag both kinds of mask are promised
        why = refused_masks(check) | why
    lost = {feature: reason for option, reason in why.items() for feature in OPTIONS[option].features}
    notes = [f"{f} not claimed: {lost[f]}" for f in sorted(lost) if f in check.claims]
    return check.without(set(lost)), notes


def _reads_booleans_only(check: ClaimCheck, options: Options) -> bool:
    """Whether a `mask` of zeros masks: by that name, many functions mean booleans only."""
    plain = check.run(PLAIN)
    if options.spelled.get("float_mask") not in ("mask", "attention_mask") or plain.error:
        return False
    zeros = check.run(replace(BIASED, pattern=Pattern.ALL))
    return bool(zeros.error) or not near_outputs(zeros, plain, check.dtype)


def _numbers_mask(check: ClaimCheck, options: Options) -> bool:
    """Whether 1 for one key in a mask of zeros leaves weight to no other, where adding it would multiply one by e."""
    fitted = fit(BIASED, check.claims)
    if options.spelled.get("float_mask") not in UNPUBLISHED or isinstance(fitted, Unsupported):
        return False
    problem = build(fitted, check.dtype).forward_only()
    keys, width = problem.value.shape[-2:]
    if problem.attn_mask is None or width < keys:
        return False
    one = np.zeros_like(problem.attn_mask)
    one[..., keys // 2] = 1
    units = np.broadcast_to(np.eye(keys, width), problem.value.shape).astype(problem.value.dtype)
    outcome = check.answer(problem.but(value=units, attn_mask=one))
    if outcome.error:
        return False
    output = output_of(outcome)
    return near(output, np.broadcast_to(np.eye(keys, width)[keys // 2], output.shape), check.dtype)
