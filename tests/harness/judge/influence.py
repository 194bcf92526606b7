"""Influence: which keys a candidate's rows really used, detected by moving one value row at a time."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.discovery.probe import spans
from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Poison, Sharing
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Problem

LONGEST = 40
"""With more keys, a failure is reported without naming keys: each key takes one more call."""
MOVE = 64.0
"""Added to a value row: a power of two, plain in every dtype, and large against ordinary values."""


def wrong_keys(problem: Problem, conventions: Conventions, run: Callable[[Problem], Result], poison: Poison) -> str:
    """Such as "query 3 of head 1 may see keys 0..3, yours also saw key 4"; empty if all is right or unknown."""
    if problem.scope is not Scope.OP and problem.sharing is not Sharing.NONE:
        return ""
    if poison is not Poison.NONE or not 0 < problem.key.shape[-2] <= LONGEST:
        return ""
    try:
        saw = _measured(problem.forward_only(), run)
    except Exception:  # whatever a broken candidate does here, its failure is already recorded
        return ""
    allowed = allowed_keys(problem, conventions)
    if problem.scope is not Scope.OP:
        allowed = np.asarray(allowed.any(1, keepdims=True))
    return _message(saw, allowed, problem.scope) if saw.shape == allowed.shape else ""


def _measured(problem: Problem, run: Callable[[Problem], Result]) -> NDArray[np.bool_]:
    before = run(problem).output.astype(np.float64)
    if not np.isfinite(before).any():
        raise ValueError("nothing moves an output without a number")
    columns = []
    for key in range(problem.key.shape[-2]):
        value = problem.value.astype(np.float64)
        value[..., key, :] += MOVE
        after = run(problem.with_arrays({"value": value.astype(problem.value.dtype)})).output.astype(np.float64)
        # A weight that moves the output by less than a roundoff of float16 is not worth naming.
        with np.errstate(invalid="ignore"):
            columns.append((np.abs(after - before) > MOVE * 2.0**-10).any(-1))
    saw = np.stack(columns, axis=-1)
    return saw if problem.scope is Scope.OP else saw[:, None]


def _message(saw: NDArray[np.bool_], allowed: NDArray[np.bool_], scope: Scope) -> str:
    beyond, blind = saw & ~allowed, allowed.any(-1) & ~saw.any(-1)
    if not beyond.any() and not blind.any():
        return ""
    sample, head, query = (int(i) for i in np.argwhere(beyond.any(-1) if beyond.any() else blind)[0])
    row = f"query {query} of head {head}" if scope is Scope.OP else f"query {query}"
    also = f"also saw {keys_in(beyond[sample, head, query])}" if beyond.any() else "saw none"
    return f"{row} (sample {sample}) may see {keys_in(allowed[sample, head, query])}, yours {also}"


def keys_in(row: NDArray[np.bool_]) -> str:
    """The keys of a row that are True, such as "keys 0..2, 5"."""
    keys = np.flatnonzero(row)
    return f"{'key' if len(keys) == 1 else 'keys'} {spans(keys)}" if len(keys) else "no key"
