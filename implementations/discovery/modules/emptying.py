"""Methods by which a module empties a cache that it holds, so that the next call begins a sequence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.signatures import required
from attention_conformance.implementations.discovery.vocabulary import words_of

EMPTYING, HELD = {"reset", "clear", "empty", "init", "initialize"}, {"cache", "caches", "kv", "state", "states"}
"""Words in the name of a method that empties a cache."""
ALONE = ("reset", "clear")
"""Its whole name, where that states no more."""


def emptied_by(kind: object) -> str:
    """The method of a module that empties the cache that it holds, by its name; empty for none."""
    methods = vars(kind) if isinstance(kind, type) else {}
    named = [name for name in methods if name in ALONE or (words_of(name) & EMPTYING and words_of(name) & HELD)]
    return next((name for name in named if _called_alone(methods[name])), "")


def _called_alone(method: Any) -> bool:
    """Whether it is a method that needs no argument."""
    parameters = safe_call(lambda: inspect.signature(method).parameters.values()).value or ()
    return [required(each) for each in parameters] == [True] + [False] * (len(parameters) - 1)


def emptied(reset: Callable[[], Any], call: Callable[[], Any]) -> Any:
    """The answer of a call that begins a sequence; a module that holds no cache may refuse to empty it."""
    safe_call(reset)
    return call()
