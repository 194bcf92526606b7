"""Influence: which keys a candidate's rows really used, detected by moving one value row at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.api.contract import Result
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
    columns = []
    for key in range(problem.key.shape[-2]):
        value = problem.value.astype(np.float64)
        value[..., key, :] += MOVE
        after = run(problem.with_arrays({"value": value.astype(problem.value.dtype)})).output.astype(np.float64)
        # A weight that moves the output by less than a roundoff of float16 is not worth naming.
        columns.append((np.abs(after - before) > MOVE * 2.0**-10).any(-1))
    saw = np.stack(columns, axis=-1)
    return saw if problem.scope is Scope.OP else saw[:, None]


def _message(saw: NDArray[np.bool_], allowed: NDArray[np.bool_], scope: Scope) -> str:
    beyond = saw & ~allowed
    if beyond.any():
        sample, head, query, _ = (int(i) for i in np.argwhere(beyond)[0])
        keys = spans(np.flatnonzero(beyond[sample, head, query]))
        return (
            f"{_who(sample, head, query, scope)} may see {_keys(allowed[sample, head, query])}, yours also saw {keys}"
        )
    blind = allowed.any(-1) & ~saw.any(-1)
    if blind.any():
        sample, head, query = (int(i) for i in np.argwhere(blind)[0])
        return f"{_who(sample, head, query, scope)} may see {_keys(allowed[sample, head, query])}, yours saw none"
    return ""


def _who(sample: int, head: int, query: int, scope: Scope) -> str:
    return (
        f"query {query} of head {head} (sample {sample})" if scope is Scope.OP else f"query {query} (sample {sample})"
    )


def _keys(row: NDArray[np.bool_]) -> str:
    return spans(np.flatnonzero(row)) if row.any() else "no key"


def spans(keys: NDArray[np.intp]) -> str:
    """[0, 1, 2, 5] as "keys 0..2, 5"."""
    runs = np.split(keys, np.flatnonzero(np.diff(keys) != 1) + 1)
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
    return ("key " if len(keys) == 1 else "keys ") + ", ".join(texts)
