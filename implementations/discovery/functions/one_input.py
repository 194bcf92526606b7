"""Functions of one input that is query, key and value together: a list of the three, or one array of them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Claims
from attention_conformance.implementations.discovery.functions.size_limits import SizeLimits
from attention_conformance.implementations.discovery.signatures import positional, required, signature_of
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.features import Feature

AXES = (None, 2, 0, 1, 3)
"""Where the three are stacked, the most usual first; None is a list of them."""
OF_OTHER_SHAPES = frozenset({Feature.CROSS, Feature.VALUE_WIDTH, Feature.GROUPED})
"""What one array cannot hold."""


@dataclass(frozen=True)
class OneInput:
    """A function that is given query, key and value together, in an order that its answers show.

    Attributes:
        function: what is called.
        axis: along which the three are stacked; None: they are a list.
    """

    function: Callable[..., Any]
    axis: int | None = None

    @property
    def about(self) -> str:
        """For a note."""
        how = "in a list" if self.axis is None else f"stacked along axis {self.axis}"
        return f"it takes query, key and value {how}"

    @property
    def __signature__(self) -> inspect.Signature:
        own = [*signature_of(self.function).parameters.values()]
        inputs = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("first", "second", "third")]
        options = [p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p for p in own[1:]]
        return inspect.Signature([*inputs, *options])

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The function's answer."""
        return self.function([*inputs] if self.axis is None else _stacked([*inputs], self.axis), **options)

    def claimed(self, claims: Claims) -> Claims:
        """The claims, without shapes that one array cannot hold."""
        if self.axis is None:
            return claims
        fit = SizeLimits(claims.fit, fewer=False, more=False)
        return replace(claims, features=claims.features - OF_OTHER_SHAPES, fit=fit)


def of_one_input(function: Callable[..., Any]) -> Iterator[OneInput]:
    """The ways in which a function of one input may take the three; none for any other function."""
    try:
        parameters = positional(signature_of(function))
    except TargetError:
        return
    if parameters and [p.name for p in parameters if required(p)] == [parameters[0].name]:
        yield from (OneInput(function, axis) for axis in AXES)


def _stacked(inputs: list[Any], axis: int) -> Any:
    if "torch" in sys.modules and isinstance(inputs[0], sys.modules["torch"].Tensor):
        return sys.modules["torch"].stack(inputs, axis)
    jax = None if isinstance(inputs[0], np.ndarray) else sys.modules.get("jax")
    return np.stack(inputs, axis) if jax is None else jax.numpy.stack(inputs, axis)
