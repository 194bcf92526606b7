"""Options of functions that change nothing or not what they promise, seen by their effect."""

from __future__ import annotations

from dataclasses import replace

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
from attention_conformance.implementations.discovery.documented import as_written, states_booleans_alone
from attention_conformance.implementations.discovery.mask_notes import without_masks_of_others
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.implementations.discovery.signatures import Options
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.implementations.discovery.vocabulary import OPTIONS, promises_nothing
from attention_conformance.spec.cases import Pattern
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build


def without_ignored(check: ClaimCheck, options: Options, function: object) -> tuple[ClaimCheck, list[str]]:
    """The check without the options that raise or have no effect where only a **kwargs takes them, with notes.

    And without masks of numbers where its documentation has booleans alone, and those of inputs that are never given.
    """
    cases = {"bool_mask": MASKED, "float_mask": BIASED, "is_causal": CAUSAL, "scale": replace(PLAIN, scale=0.3)}
    swallowed = sorted(options.swallowed & set(cases))
    why = {option: RAISES for option in swallowed if check.run(cases[option]).error}
    why |= {option: NO_EFFECT for option in swallowed if check.ignores(cases[option])}
    own = options.spelled.get("float_mask", "")
    if own and own == options.spelled.get("bool_mask") and states_booleans_alone(as_written(function), own):
        why["float_mask"] = f"by its documentation {own!r} is boolean"
    elif _reads_booleans_only(check, options):
        why.setdefault("float_mask", f"zeros in its {options.spelled['float_mask']!r} mask keys, so that it is boolean")
    elif _hides_by_numbers(check, options):
        why.setdefault("float_mask", f"any number in its {options.spelled['float_mask']!r} but 0 hides a key")
    elif _numbers_mask(check, options):
        why.setdefault("float_mask", f"numbers in its {options.spelled['float_mask']!r} mask keys, and are not added")
    why = refused_masks(check) | why
    lost = {feature: reason for option, reason in why.items() for feature in OPTIONS[option].features}
    notes = [unclaimed(f, lost[f]) for f in sorted(lost) if f in check.claims]
    check, others = without_masks_of_others(check.without(set(lost)), function)
    return check, [*notes, *others]


def _reads_booleans_only(check: ClaimCheck, options: Options) -> bool:
    """Whether a `mask` of zeros masks: by that name, many functions mean booleans only."""
    plain = check.run(PLAIN)
    if not promises_nothing(options.spelled.get("float_mask", "")) or plain.error:
        return False
    zeros = check.run(replace(BIASED, pattern=Pattern.ALL))
    return bool(zeros.error) or not near_outputs(zeros, plain, check.dtype)


def _hides_by_numbers(check: ClaimCheck, options: Options) -> bool:
    """Whether a number for one key in a mask of zeros hides that key, as the boolean mask does."""
    fitted = fit(BIASED, check.claims)
    kinds = {Feature.BOOL_MASK, Feature.FLOAT_MASK}
    unknown = not promises_nothing(options.spelled.get("float_mask", "")) or not kinds <= check.claims.features
    if unknown or isinstance(fitted, Unsupported):
        return False
    problem = build(fitted, check.dtype).forward_only()
    assert problem.attn_mask is not None
    at = problem.attn_mask.shape[-1] // 2
    number, hidden = np.zeros_like(problem.attn_mask), np.ones(problem.attn_mask.shape, bool)
    number[..., at], hidden[..., at] = 0.5, False
    one, other, without = (check.answer(problem.but(attn_mask=mask)) for mask in (number, hidden, None))
    if one.error or other.error or without.error:
        return False
    return near_outputs(one, other, check.dtype) and not near_outputs(one, without, check.dtype)


def _numbers_mask(check: ClaimCheck, options: Options) -> bool:
    """Whether 1 for one key in a mask of zeros leaves weight to no other, where adding it would multiply one by e."""
    fitted = fit(BIASED, check.claims)
    if not promises_nothing(options.spelled.get("float_mask", "")) or isinstance(fitted, Unsupported):
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
    expected = np.eye(keys, width)[keys // 2]
    return output.shape[-1:] == (width,) and near(output, np.broadcast_to(expected, output.shape), check.dtype)
