"""Safe calls: a call into a candidate after which nobody else is disturbed, whatever it raises, warns or changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from attention_conformance.implementations.api.global_state import kept_global_state

Value = TypeVar("Value")


@dataclass(frozen=True)
class CallOutcome(Generic[Value]):
    """What one call gave: its value, or its exception in one line."""

    value: Value | None = None
    error: str = ""


def safe_call(call: Callable[[], Value]) -> CallOutcome[Value]:
    """Calls, ignores warnings, and restores the global state.

    SystemExit is an outcome as any exception is, because a candidate may not end the run; KeyboardInterrupt is raised.
    """
    try:
        with warnings.catch_warnings(), kept_global_state(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return CallOutcome(call())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return CallOutcome(error=error_line(error))


def error_line(error: BaseException) -> str:
    """An exception in one line: its type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
