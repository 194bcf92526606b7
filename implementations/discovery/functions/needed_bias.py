"""Functions of heads and samples in one axis that have to be given a bias: zeros where a problem has none."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.signatures import dispensable, required, signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES


@dataclass(frozen=True)
class NeededBias:
    """A function whose bias may be left out.

    Attributes:
        function: it.
        bias: its parameter that takes numbers, (N, Lq, Lk), which are added to the scores.
    """

    function: Callable[..., Any]
    bias: str

    @property
    def __signature__(self) -> inspect.Signature:
        return dispensable(signature_of(self.function), self.bias)

    @property
    def about(self) -> str:
        """For a note."""
        return f"given zeros in {self.bias!r} where a problem has no bias"

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        if options.get(self.bias) is None:
            shape = (1, query.shape[-2], key.shape[-2])
            options[self.bias] = query.new_zeros(shape) if hasattr(query, "new_zeros") else np.zeros(shape, query.dtype)
        return self.function(query, key, value, **options)


def with_needed_bias(function: Callable[..., Any]) -> NeededBias | None:
    """The function, given zeros unless it is given a bias; None where it needs none, or takes heads in an axis."""
    signature = safe_call(lambda: signature_of(function)).value
    own = [] if signature is None else [p.name for p in signature.parameters.values() if required(p)][3:]
    if len(own) != 1 or KNOWN_NAMES.get(own[0]) != "float_mask":
        return None
    made = NeededBias(function, own[0])

    def answers(shape: tuple[int, ...]) -> bool:
        return any(safe_call(partial(made, x, x, x)).value is not None for x in of_each_kind(shape))

    return made if answers((6, 5, 4)) and not answers((2, 3, 5, 4)) else None
