"""Parameters that take an option in a form of its own, by default or annotation: pairs of a window, lists of biases."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

NO_WINDOW = ((-1, -1), (None, None))
"""What a window's two sides are by default, where nothing is limited."""
OF_ARRAYS = re.compile(r"\b(?:list|sequence|iterable)\[.*(?:tensor|array)", re.IGNORECASE)
"""An annotation of several arrays."""


def pair_of_window(rest: Iterable[inspect.Parameter]) -> dict[str, str]:
    """The parameter of a window's two sides by its default, none on either, whatever else its name states."""
    named = [p for p in rest if "window" in p.name.lower().split("_") and isinstance(p.default, tuple | list)]
    pairs = [p.name for p in named if tuple(p.default) in NO_WINDOW]
    return {"window_size": pairs[0]} if len(pairs) == 1 else {}


def list_of_biases(rest: Iterable[inspect.Parameter]) -> dict[str, str]:
    """The parameter of a list of biases, which may be left out, by its name and its annotation."""
    named = [p for p in rest if {"bias", "biases"} & {*p.name.lower().split("_")}]
    lists = [p.name for p in named if OF_ARRAYS.search(str(p.annotation)) and _is_empty(p.default)]
    return {"float_mask": lists[0]} if len(lists) == 1 else {}


def _is_empty(default: object) -> bool:
    return default is None or (isinstance(default, tuple | list) and not default)


def in_list(bias: Any) -> list[Any]:
    """A bias as the second of a list, after one of zeros, where an array makes such."""
    return [bias.new_zeros(bias.shape), bias] if hasattr(bias, "new_zeros") else [bias]
