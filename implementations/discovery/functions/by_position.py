"""Functions whose options can only be given by position, as those that map an axis of each argument take them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.signatures import (
    is_variadic,
    positional,
    required,
    signature_of,
)

MAPPING = "vmap"
"""What is in the names of functions of libraries that map the axes of what is given by keyword, too."""


@dataclass(frozen=True)
class ByPosition:
    """A function that gets what it takes by position so, whatever the name by which it is given.

    Attributes:
        function: it.
    """

    function: Callable[..., Any]

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function)
        inputs = {p.name for p in positional(own)[:3]}
        free = [p if p.name in inputs or is_variadic(p) else _by_name(p) for p in own.parameters.values()]
        return own.replace(parameters=free)

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The function's answer.

        Raises:
            TypeError: it is not given what it needs.
        """
        own = positional(signature_of(self.function))[len(inputs) :]
        if missing := [p.name for p in own if required(p) and p.name not in options]:
            raise TypeError(f"it is called without {missing[0]!r}")
        given = [options.pop(p.name, p.default) for p in own]
        return self.function(*inputs, *given, **options)


def _by_name(parameter: inspect.Parameter) -> inspect.Parameter:
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def with_options_by_position(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or one that takes its options by name, where it refuses them so."""
    signature = safe_call(lambda: signature_of(function)).value
    options = [] if signature is None else positional(signature)[3:]
    refused = any(p.kind is p.POSITIONAL_ONLY for p in options) or (bool(options) and _maps(function))
    return ByPosition(function) if refused else function


def _maps(function: Any) -> bool:
    """Whether a library's mapping is what is called, or is within what compiles it."""
    while hasattr(function, "__wrapped__"):
        if isinstance(function, FunctionType) and any(map(_is_mapping, _called_by(function))):
            return True
        function = function.__wrapped__
    return False


def _called_by(wrapper: FunctionType) -> list[FunctionType]:
    """It, and the functions that it closes over: JAX has another wrapper around each of its own."""
    held = [cell.cell_contents for cell in wrapper.__closure__ or ()]
    return [wrapper, *(each for each in held if isinstance(each, FunctionType))]


def _is_mapping(function: FunctionType) -> bool:
    code = function.__code__
    named = MAPPING in getattr(code, "co_qualname", code.co_name)
    return named and bool({"site-packages", "dist-packages"} & {*Path(code.co_filename).parts})
