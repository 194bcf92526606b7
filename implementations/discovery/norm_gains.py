"""Gains of norms: whether one that a function is given multiplies by itself, or by 1 more, as answers show it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.always import rows
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.spec.conventions import NormGain
from attention_conformance.spec.features import Feature, QkNorm
from attention_conformance.spec.inputs import build

GAINS = ("query_norm", "key_norm")


def norm_gain_as_seen(check: ClaimCheck) -> ClaimCheck:
    """The check with gains that multiply by 1 more, where gains of -1 leave no scores, and those of 0 some."""
    fitted = fit(PLAIN.extended(qk_norm=QkNorm.HEAD), check.claims)
    if Feature.QK_NORM not in check.claims or isinstance(fitted, Unsupported):
        return check
    problem = build(fitted, check.dtype).forward_only()
    given = {name: problem.extras[name] for name in GAINS if name in problem.extras}
    zeros, less = (problem.with_arrays({n: np.full_like(x, number) for n, x in given.items()}) for number in (0, -1))
    usual, none = rows(check, zeros), rows(check, less)
    if not given or usual is None or none is None or near(usual, none, check.dtype):
        return check
    alike = near(none, np.broadcast_to(none[..., :1, :], none.shape), check.dtype)  # no scores: each row is the mean
    if not alike:
        return check
    conventions = replace(check.claims.conventions, norm_gain=NormGain.PLUS_ONE)
    return replace(check, claims=replace(check.claims, conventions=conventions)).stating("its gains multiply by 1 more")
