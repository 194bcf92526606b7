"""Functions that have to be given the number of a window: without a limit they are given one of all keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.probe import near
from attention_conformance.implementations.discovery.signatures import dispensable, required, signature_of

TOKENS, NARROW = 6, 2
"""Of the inputs with which it is looked at, and of a window that hides some of them."""


@dataclass(frozen=True)
class NeededWindow:
    """A function whose window may be left out.

    Attributes:
        function: it.
        window: its parameter that takes a number of tokens.
        axis: that of the tokens in its inputs.
        halved: whether a window of all tokens does not show all of them to each.
    """

    function: Callable[..., Any]
    window: str
    axis: int = -2
    halved: bool = False

    @property
    def __signature__(self) -> inspect.Signature:
        return dispensable(signature_of(self.function), self.window)

    @property
    def about(self) -> str:
        """For a note."""
        return f"given a window of all tokens in {self.window!r} where a problem has none"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        if options.get(self.window) is None:
            tokens = max(1, query.shape[self.axis], key.shape[self.axis])
            options[self.window] = 2 * tokens + 1 if self.halved else tokens
        return self.function(query, key, value, **options)


def with_needed_window(function: Callable[..., Any]) -> NeededWindow | None:
    """The function, given a window of all tokens unless it is given another; None where it needs none."""
    signature = safe_call(lambda: signature_of(function)).value
    own = [] if signature is None else [p.name for p in signature.parameters.values() if required(p)][3:]
    windows = [name for name in own if "window" in name.lower().split("_")]
    return _shown(function, windows[0]) if own and own == windows[:1] else None


def _shown(function: Callable[..., Any], window: str) -> NeededWindow | None:
    """The axis of the tokens is the one along which a window hides something."""
    for axis, shape in ((-2, (1, 1, TOKENS, 4)), (-3, (1, TOKENS, 1, 4)), (-2, (1, TOKENS, 4)), (-2, (TOKENS, 4))):
        for x in of_each_kind(shape):
            narrow, whole, wide = (
                safe_call(partial(function, x, x, x, **{window: number})).value
                for number in (NARROW, TOKENS, 2 * TOKENS + 1)
            )
            if wide is not None and not _alike(narrow, wide):
                return NeededWindow(function, window, axis, halved=not _alike(whole, wide))
    return None


def _alike(one: Any, other: Any) -> bool:
    one, other = (each[0] if isinstance(each, tuple | list) and each else each for each in (one, other))
    return bool(safe_call(lambda: near(np.asarray(one), np.asarray(other), "float32")).value)
