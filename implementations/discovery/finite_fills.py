"""Finite fills: a number in place of minus infinity in the scores of later keys, whose reach ends somewhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck, output_of
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.spec.cases import Case, Scores
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build

DEEP = replace(PLAIN, scores=Scores.MOST_NEGATIVE, causal=True).sized(query_length=5, key_length=5)
"""Scores below the numbers that are usual in place of minus infinity; few: what dies in a long call is to be judged."""


def causal_fill_as_seen(check: ClaimCheck) -> ClaimCheck:
    """The check without causal scores below a finite number that the scores of later keys are filled with.

    The same is not judged in masks where rows without keys get a mean; causality alone may leave no such row.
    """
    if not check.claims.premises.causal and Feature.CAUSAL not in check.claims:
        return check
    usual = output_of(plain) if not (plain := check.run(PLAIN)).error else None
    if usual is None or near(usual[..., 0, :], usual[..., -1, :], check.dtype) or not _first_gets_the_later(check):
        return check
    claims = replace(check.claims, fit=partial(fit_above_fills, check.claims.fit))
    return replace(check, claims=claims).stating("the scores of later keys are filled with a finite number")


def fit_above_fills(before: Fit, case: Case) -> Case | Unsupported:
    """The fit of one whose causal scores are not claimed below what the usual numbers of a fill leave."""
    if case.causal and case.scores is Scores.MOST_NEGATIVE:
        return Unsupported("scores below the finite number that later ones are filled with are not claimed")
    return before(case)


def _first_gets_the_later(check: ClaimCheck) -> bool:
    """Whether the first query gets the mean of the later values: what any query gets where all values are that."""
    fitted = fit(DEEP if not check.claims.premises.causal else replace(DEEP, causal=False), check.claims)
    if isinstance(fitted, Unsupported) or fitted.scores is not DEEP.scores or fitted.sizes.key_length < 3:
        return False
    problem = build(fitted, check.dtype).forward_only()
    arrays = problem.arrays()
    name = next(each for each in ("value", "key", "query") if each in arrays)
    later = arrays[name][..., 1:, :].astype(np.float64).mean(-2, keepdims=True)
    alike = np.broadcast_to(later, arrays[name].shape).astype(arrays[name].dtype, order="C")
    first, mean = check.answer(problem), check.answer(problem.with_arrays({name: alike}))
    if first.error or mean.error or output_of(first).shape != output_of(mean).shape:
        return False
    return near(output_of(first)[..., 0, :], output_of(mean)[..., -1, :], check.dtype)
