"""Rows that causality and padding empty together: hidden by numbers of different sizes, they are none of the known."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck, output_of
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.spec.cases import NOT_FIRST, Case, Padding
from attention_conformance.spec.conventions import EmptyRow
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build

NOTE = unclaimed("rows that causality and padding empty together", "they are averaged over what causality leaves")


def without_rows_emptied_twice(check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check without such rows where they are averages, but not of all keys, and a note.

    Causality that hides with infinity outweighs padding that adds a finite number.
    """
    claims = check.claims
    always = claims.premises.causal
    averaged = claims.conventions.empty_row_causal is EmptyRow.UNIFORM
    if not averaged or Feature.KEY_PADDING not in claims or not (always or Feature.CAUSAL in claims):
        return check, []
    fitted = fit(replace(PLAIN, padding=Padding.LEFT, causal=not always), claims)
    if isinstance(fitted, Unsupported):
        return check, []
    problem = build(fitted, check.dtype).forward_only()
    scoring = [name for name in ("w_q", "b_q") if name in problem.parameters] or ["query"]
    alike = problem.with_arrays({name: problem.arrays()[name] * 0 for name in scoring})
    padded, even = check.answer(problem), check.answer(alike.but(key_padding_mask=None))
    if padded.error or even.error or problem.key_padding_mask is None:
        return check, []
    empty = ~np.asarray(problem.key_padding_mask)[:, 0]
    row, mean = output_of(padded)[empty][..., 0, :], output_of(even)[empty][..., -1, :]
    if near(row, mean, check.dtype):
        return check, []
    kept = partial(fit_rows_not_emptied_twice, claims.fit, always)
    return replace(check, claims=replace(claims, fit=kept)), [NOTE]


def fit_rows_not_emptied_twice(before: Fit, always: bool, case: Case) -> Case | Unsupported:
    """The fit of one whose rows that causality and padding empty together are not claimed."""
    emptied = (always or case.causal) and case.padding in (*NOT_FIRST, Padding.EMPTY_SAMPLE)
    return Unsupported("a row that causality and padding empty together is not claimed") if emptied else before(case)
