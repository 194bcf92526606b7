"""Sink tokens: a number of first keys that every later query sees, whatever its window is."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.functions.function_calls import RenamedCall
from attention_conformance.implementations.discovery.signatures import signature_of, window_names

SINKS = {"sink", "sinks"}
OF_COUNTS = {"num", "n", "number", "count", "tokens", "token", "size", "len", "attention", "attn", "keep"}
"""Words of which names of such numbers consist, next to one of sinks."""
WAY = "with all keys as sinks"


@dataclass(frozen=True)
class AllSinks:
    """A function to which each key is a sink, where its window leaves out none: that changes no answer.

    Attributes:
        function: it.
        sinks: its parameter for their number.
        windows: its parameters for windows.
    """

    function: Callable[..., Any]
    sinks: str
    windows: tuple[str, ...]

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        tokens = max(key.shape[1:-1], default=1)
        numbers = [options[name] for name in self.windows if type(options.get(name)) is int]
        whole = {} if any(number < tokens for number in numbers) else {self.sinks: tokens}
        return self.function(query, key, value, **{**options, **whole})


def with_all_sinks(check: ClaimCheck, function: Callable[..., Any]) -> dict[str, RenamedCall]:
    """The function with each key as a sink, where a parameter that need not be given counts these."""
    call, own = check.function, [*signature_of(function).parameters.values()][3:]
    named = [p.name for p in own if type(p.default) is int and _counts_sinks(p.name)]
    if len(named) != 1 or not isinstance(call, RenamedCall):
        return {}
    windows = (*window_names(signature_of(function)),)
    other = replace(call, function=AllSinks(function, named[0], windows))
    return {} if replace(check, function=other).run(PLAIN).error else {WAY: other}


def _counts_sinks(name: str) -> bool:
    words = {*name.lower().split("_")}
    return bool(words & SINKS) and words - SINKS <= OF_COUNTS and words != SINKS & words
