"""Columns: functions of weights whose tokens are the columns of their inputs, (E, L), called with rows, (L, E)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

from attention_conformance.implementations.discovery.modules.given_weights import OF_BIAS, WEIGHT


def of_columns(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of rows: inputs and answers change their last two axes, and a bias is a column, (E, 1)."""
    signature = inspect.signature(function)

    @wraps(function)
    def of_rows(*inputs: Any, **options: Any) -> Any:
        bound = signature.bind(*inputs, **options)
        bound.arguments = {name: _as_column(name, each) for name, each in bound.arguments.items()}
        return _transposed(function(*bound.args, **bound.kwargs))

    return of_rows


def _as_column(name: str, given: Any) -> Any:
    if WEIGHT.match(name):
        return given[..., None] if OF_BIAS.search(name) else given
    return _transposed(given)


def _transposed(given: Any) -> Any:
    if isinstance(given, tuple | list):
        return type(given)(map(_transposed, given))
    return given.swapaxes(-1, -2) if getattr(given, "ndim", 0) > 1 else given
