"""Logarithms of nothing: which log-sum-exp a function returns for a row without keys, which no name promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.discovery.claim_checks import ClaimCheck, output_of
from attention_conformance.implementations.discovery.extras import Extra
from attention_conformance.implementations.discovery.probe import Floats
from attention_conformance.implementations.discovery.rows_without_keys import EMPTIED, EMPTY_SAMPLES
from attention_conformance.spec.conventions import LEAST_LOG, LogOfNothing
from attention_conformance.spec.inputs import build


def log_of_nothing_as_seen(check: ClaimCheck, extras: Sequence[Extra]) -> ClaimCheck:
    """The check with the log-sum-exp of a row without keys that is seen, if it is known, and not minus infinity."""
    position = next((extra.position for extra in extras if extra.name == "log_sum_exp"), None)
    if position is None:
        return check
    for case, number in EMPTIED.values():
        fitted = fit(case, check.claims)
        outcome = None if isinstance(fitted, Unsupported) else check.answer(build(fitted, check.dtype).forward_only())
        if outcome is None or outcome.error:
            continue
        sample, row = (-1, 0) if case.padding in EMPTY_SAMPLES else (slice(None), number)
        output, logs = output_of(outcome), output_of(outcome, position)
        seen = _known(logs[sample, ..., row], output[sample, ..., row, :])
        if seen is not None:
            conventions = check.claims.conventions.claiming({"log-of-nothing": str(seen)})
            check = replace(check, claims=replace(check.claims, conventions=conventions))
            return check.stating(f"the log-sum-exp of a row without keys is {seen}")
    return check


def _known(logs: Floats, rows: Floats) -> LogOfNothing | None:
    if np.isnan(logs).all() and np.isnan(rows).all():
        return LogOfNothing.NAN
    if np.isposinf(logs).all():
        return LogOfNothing.PLUS_INFINITY
    return LogOfNothing.LEAST if np.isfinite(logs).all() and (logs <= LEAST_LOG).all() else None
