"""Padded positions: whether padded keys count where what is always done depends on positions, as answers show it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.always import rows
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.spec.conventions import PaddedPositions
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build

TOKENS, PADDED = 7, 2
"""Of a sequence, and the one among them that is padding."""


def padded_positions_as_seen(check: ClaimCheck) -> ClaimCheck:
    """The check with what it makes of a padded token amid others: as if it were not there, or one that is hidden.

    Of what always has slopes or rotations: positions are made of the mask itself in a published way.
    """
    premises = check.claims.premises
    if not (premises.alibi or premises.rotary_base) or Feature.KEY_PADDING not in check.claims:
        return check
    fitted = fit(PLAIN.sized(query_length=TOKENS, key_length=TOKENS), check.claims)
    if isinstance(fitted, Unsupported):
        return check
    problem, left = build(fitted, check.dtype).forward_only(), np.delete(np.arange(TOKENS), PADDED)
    inputs = {name: getattr(problem, name).take(left, -2) for name in ("query", "key", "value")}
    seen = np.broadcast_to(np.arange(TOKENS) != PADDED, (problem.batch, TOKENS)).copy()
    hidden, without = rows(check, problem.but(key_padding_mask=seen)), rows(check, problem.with_arrays(inputs))
    if hidden is None or without is None or not near(hidden.take(left, -2), without, check.dtype):
        return check
    conventions = replace(check.claims.conventions, padded_positions=PaddedPositions.SKIPPED)
    claims = replace(check.claims, conventions=conventions)
    return replace(check, claims=claims).stating("padded keys do not count in its positions")
