"""Functions that write their output into an array which they are given, as kernels do."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.signatures import required, signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES

OUTPUTS = {"out", "output", "outputs", "o", "result", "dst"}
"""Names of that array, in lower case."""


@dataclass(frozen=True)
class GivenOutput:
    """A function that is given an array for its output in each call, full of NaN.

    Attributes:
        function: it.
        name: the parameter that takes the array.
    """

    function: Callable[..., Any]
    name: str

    @property
    def __signature__(self) -> inspect.Signature:
        own = list(signature_of(self.function).parameters.values())
        rest = [p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p for p in own[3:]]
        return inspect.Signature([*own[:3], *(p for p in rest if p.name != self.name)])

    @property
    def about(self) -> str:
        """For a note."""
        return f"it writes its output into {self.name!r}"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer, or where it returns nothing the array."""
        shape = (*query.shape[:-1], value.shape[-1])
        of_torch = hasattr(query, "new_full")
        output = query.new_full(shape, np.nan) if of_torch else np.full(shape, np.nan, query.dtype)
        answer = self.function(query, key, value, **{self.name: output}, **options)
        return output if answer is None else answer


def with_given_output(function: Callable[..., Any]) -> GivenOutput | None:
    """The function, given an array for its output; None where it needs none."""
    signature = safe_call(lambda: signature_of(function)).value
    rest = [] if signature is None else [*signature.parameters.values()][3:]
    names = [p.name for p in rest if required(p) and p.name.lower() in OUTPUTS and p.name not in KNOWN_NAMES]
    return GivenOutput(function, names[0]) if len(names) == 1 else None
