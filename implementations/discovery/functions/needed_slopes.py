"""Functions that have to be given the slopes of ALiBi: without any they are given zeros, one for each head."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.signatures import dispensable, required, signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES


@dataclass(frozen=True)
class NeededSlopes:
    """A function whose slopes may be left out.

    Attributes:
        function: it.
        slopes: its parameter that takes them, (H,).
        axis: that of the heads in its query.
    """

    function: Callable[..., Any]
    slopes: str
    axis: int

    @property
    def __signature__(self) -> inspect.Signature:
        return dispensable(signature_of(self.function), self.slopes)

    @property
    def about(self) -> str:
        """For a note."""
        return f"given zeros in {self.slopes!r} where a problem has no slopes"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        if options.get(self.slopes) is None:
            options[self.slopes] = _zeros(query, query.shape[self.axis])
        return self.function(query, key, value, **options)


def _zeros(query: Any, heads: int) -> Any:
    return query.new_zeros(heads).float() if hasattr(query, "new_zeros") else np.zeros(heads, np.float32)


def with_needed_slopes(function: Callable[..., Any]) -> NeededSlopes | None:
    """The function, given slopes of zero unless it is given others; None where it needs none, or is not called so."""
    signature = safe_call(lambda: signature_of(function)).value
    own = [] if signature is None else [p.name for p in signature.parameters.values() if required(p)][3:]
    slopes = [name for name in own if KNOWN_NAMES.get(name) == "alibi_slopes"]
    if own and own == slopes:
        for axis in (1, 2):
            made = NeededSlopes(function, slopes[0], axis)
            if any(safe_call(partial(made, x, x, x)).value is not None for x in _inputs(axis)):
                return made
    return None


def _inputs(axis: int) -> Iterator[Any]:
    """Arrays of each kind and, of torch, dtype, with 3 heads on an axis."""
    arrays = of_each_kind((2, 3, 5, 4) if axis == 1 else (2, 5, 3, 4))
    yield from arrays
    yield from (arrays[0].double(), arrays[0].bfloat16(), arrays[0].half())
