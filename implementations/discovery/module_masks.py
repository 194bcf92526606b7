"""Masks of modules: in which shape and with which meaning of True one is taken, seen by its effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attention_conformance.implementations.api.contract import Claims, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.always import MASKS, changes, rows
from attention_conformance.implementations.discovery.claim_checks import (
    BIASED,
    MASKED,
    PLAIN,
    ClaimCheck,
    near_outputs,
    output_of,
)
from attention_conformance.implementations.discovery.probe import Floats, near
from attention_conformance.implementations.discovery.vocabulary import MaskForm
from attention_conformance.spec.cases import Case, MaskShape, Pattern, Sharing
from attention_conformance.spec.conventions import EmptyRow, Polarity
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.masks import Booleans

if TYPE_CHECKING:
    from attention_conformance.implementations.discovery.forwards import ModuleCall

PUBLISHED = ("attn_mask", "key_padding_mask", "is_causal")
"""Names of a well-known interface: what they promise is judged, not observed."""
FORMS = (MaskForm.FLAT, MaskForm.FULL, MaskForm.SAMPLE, MaskForm.SHARED)
SHAPES = {MaskForm.SAMPLE: MaskShape.SAMPLE, MaskForm.SHARED: MaskShape.SHARED}
"""The axes of masks that are the same for all heads, or for all samples too."""


def with_mask_form(call: ModuleCall, check: ClaimCheck, observed: bool) -> ModuleCall:
    """With the first form of an attention mask that has the right effect, or else with the first that raises no error.

    `observed` states whether the meaning of True is what is seen; it is not where its names promise one.
    """
    spelled = call.options.spelled
    if not {"bool_mask", "float_mask"} & set(spelled):
        return call
    polarities = list(Polarity) if observed and not is_published(call) else [call.polarity]
    polarities.sort(key=lambda polarity: polarity is not call.polarity)
    tried = [replace(call, form=form, polarity=polarity) for polarity in polarities for form in FORMS]
    if "bool_mask" in spelled:
        for each in tried:
            if _has_effect(replace(check, function=each), shaped(MASKED, each.form)):
                return each
    case = MASKED if "bool_mask" in spelled else BIASED
    for each in (replace(call, form=form) for form in FORMS if form is not MaskForm.SAMPLE):
        if not replace(check, function=each).run(shaped(case, each.form)).error:
            return each
    return call


def is_published(call: ModuleCall) -> bool:
    """Whether its masks have the names of torch.nn.MultiheadAttention."""
    return bool(set(PUBLISHED) & set(call.options.spelled.values()))


def shaped(case: Case, form: MaskForm) -> Case:
    """The case with a mask as a form allows it."""
    return replace(case, mask_shape=SHAPES[form]) if form in SHAPES else case


def _has_effect(check: ClaimCheck, case: Case) -> bool:
    """Whether a changed key changes those queries that may see it, and no others."""
    fitted = fit(case, check.claims)
    if isinstance(fitted, Unsupported):
        return False
    problem = build(fitted, check.dtype)
    seen: Booleans = np.asarray(np.broadcast_to(np.asarray(problem.attn_mask), (2, 3, 16, 16)).any(1))
    compared = list(_compared(check, fitted, seen, problem.sharing is Sharing.SELF))
    return bool(compared) and all(compared)


def _compared(check: ClaimCheck, fitted: Case, seen: Booleans, tied: bool) -> Iterator[bool]:
    for key, changed in changes(check, fitted, each_sample=True):
        others = np.arange(changed.shape[-1]) != key if tied else np.ones(changed.shape[-1], bool)
        yield changed.shape == seen.shape[:2] and bool((changed == seen[..., key])[:, others].all())


def as_seen(call: ModuleCall, check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check of masks whose names promise nothing: with the answer to an empty row that is seen, and a note."""
    if is_published(call) or not {"bool_mask", "float_mask"} <= set(call.options.spelled):
        return check, []
    if error := check.run(shaped(MASKED, call.form)).error:
        return check.without(MASKS), [f"masks not claimed: {error}"]
    notes = []
    plain, zeros = check.run(PLAIN), check.run(shaped(replace(BIASED, pattern=Pattern.ALL), call.form))
    if zeros.error or not near_outputs(plain, zeros, check.dtype):
        check = check.without({Feature.FLOAT_MASK, Feature.MASK_GRADIENT})
        notes.append(f"float-mask not claimed: {zeros.error or 'zeros in it mask keys, so that it is boolean'}")
    return empty_rows_as_seen(check, shaped(MASKED, call.form), notes)


def empty_rows_as_seen(check: ClaimCheck, masked: Case, notes: list[str]) -> tuple[ClaimCheck, list[str]]:
    """The check with the claim of what a row without keys gets, if that is NaN, or the mean of all values."""
    fitted = fit(replace(masked, pattern=Pattern.EMPTY_ROW), check.claims)
    if isinstance(fitted, Unsupported):
        return check, notes
    answer = _empty_row(check, fitted)
    if answer is None:
        return check, notes
    conventions = replace(
        check.claims.conventions, empty_row_bool=answer, empty_row_float=answer, empty_row_causal=answer
    )
    claims: Claims = replace(check.claims, conventions=conventions)
    return replace(check, claims=claims), [*notes, f"a row without keys gets {answer}"]


def _empty_row(check: ClaimCheck, fitted: Case) -> EmptyRow | None:
    problem = build(fitted, check.dtype).forward_only()
    outcome = check.answer(problem)
    if outcome.error or (got := output_of(outcome)).shape[-2:-1] != (fitted.sizes.query_length,):
        return None
    row: Floats = got[..., 1, :]
    if np.isnan(row).all():
        return EmptyRow.NAN
    scoring = [name for name in ("w_q", "b_q") if name in problem.parameters] or ["query"]
    alike = problem.but(attn_mask=None, causal=False)
    equal = rows(check, alike.with_arrays({name: problem.arrays()[name] * 0 for name in scoring}))
    return EmptyRow.UNIFORM if equal is not None and near(row, equal[..., 1, :], check.dtype) else None
