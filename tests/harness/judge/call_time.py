"""Calls that begin only while there is time."""

import time
from collections.abc import Callable

from attention_conformance.implementations.api.contract import Implementation, Result
from attention_conformance.implementations.worker.remote import begun
from attention_conformance.spec.problem import Problem


class BudgetSpentError(Exception):
    """No call may begin any more."""


def begun_in_time(
    implementation: Implementation, problem: Problem, device: str, until: float | None
) -> Callable[[], Result]:
    """Starts a call before a monotonic time, if one is given; see `begun`.

    Raises:
        BudgetSpentError: it is later.
    """
    if until is not None and time.monotonic() >= until:
        raise BudgetSpentError
    return begun(implementation, problem, device)
