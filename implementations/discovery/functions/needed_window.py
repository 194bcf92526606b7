"""Functions that have to be given the number of a window: without a limit they are given one of all keys."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.signatures import positional, required, signature_of


@dataclass(frozen=True)
class NeededWindow:
    """A function whose window may be left out.

    Attributes:
        function: it.
        window: its parameter that takes a number of tokens.
        axis: that of the tokens in its inputs.
    """

    function: Callable[..., Any]
    window: str
    axis: int

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function)
        inputs = [p.name for p in positional(own)[:3]]
        named = [p if p.name in inputs else p.replace(kind=p.KEYWORD_ONLY) for p in own.parameters.values()]
        return own.replace(parameters=[p.replace(default=None) if p.name == self.window else p for p in named])

    @property
    def about(self) -> str:
        """For a note."""
        return f"given a window of all tokens in {self.window!r} where a problem has none"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        if options.get(self.window) is None:
            options[self.window] = 1 + 2 * (query.shape[self.axis] + key.shape[self.axis])  # some halve it
        return self.function(query, key, value, **options)


def with_needed_window(function: Callable[..., Any]) -> NeededWindow | None:
    """The function, given a window of all tokens unless it is given another; None where it needs none."""
    signature = safe_call(lambda: signature_of(function)).value
    own = [] if signature is None else [p.name for p in signature.parameters.values() if required(p)][3:]
    windows = [name for name in own if "window" in name.lower().split("_")]
    if own and own == windows[:1]:
        for axis, shape in ((-2, (2, 3, 5, 4)), (-3, (2, 5, 3, 4)), (-2, (2, 5, 4))):
            made = NeededWindow(function, windows[0], axis)
            if any(safe_call(partial(made, x, x, x)).value is not None for x in of_each_kind(shape)):
                return made
    return None
