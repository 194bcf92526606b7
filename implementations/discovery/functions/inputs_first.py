"""Functions whose query, key and value are known by their names alone, as another parameter stands between them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.shipped.shipped import as_shipped
from attention_conformance.implementations.discovery.shipped.shipped_others import interfaces
from attention_conformance.implementations.discovery.signatures import positional, role, signature_of
from attention_conformance.implementations.discovery.vocabulary import INPUTS


@dataclass(frozen=True)
class InputsFirst:
    """A function that is called with query, key and value first.

    Attributes:
        function: it.
        inputs: its names for them.
    """

    function: Callable[..., Any]
    inputs: tuple[str, ...]

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function).parameters
        others = [p for name, p in own.items() if name not in self.inputs]
        named = [p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p for p in others]
        return inspect.Signature([*(own[name] for name in self.inputs), *named])

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The function's answer."""
        return self.function(**dict(zip(self.inputs, inputs, strict=True)), **options)


def with_inputs_first(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or one that takes its inputs first, where something that is none stands before one of them.

    A published interface has a place of its own for what stands before them.
    """
    if as_shipped(function, interfaces()):
        return function
    signature = safe_call(lambda: signature_of(function)).value
    if signature is None:
        return function
    roles = {p.name: role(p.name) for p in positional(signature) if p.kind is p.POSITIONAL_OR_KEYWORD}
    inputs = [name for each in INPUTS for name, found in roles.items() if found == each]
    first = {p.name for p in positional(signature)[:3]}
    if first & {"self", "cls"}:
        return function  # a method without its object, which is refused elsewhere
    if len(inputs) != 3 or {roles[name] for name in inputs} != {*INPUTS} or {*inputs} == first:
        return function
    return InputsFirst(function, (*inputs,))
