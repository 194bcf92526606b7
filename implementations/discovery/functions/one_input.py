"""Functions of one input that is query, key and value together: a list, one more axis, or a part of another axis."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Claims
from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.documented_equations import states_blocks
from attention_conformance.implementations.discovery.functions.size_limits import SizeLimits
from attention_conformance.implementations.discovery.signatures import positional, required, signature_of
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import HEAD_COUNTS
from attention_conformance.spec.features import Feature

LIST = ("list",)
STACKED = (LIST, *(tuple(axes) for axes in ("BHRLD", "RBHLD", "BRHLD", "BHLRD")))
"""A list of the three, or an array with an axis R for them, next to those of (B, H, L, d); the most usual first."""
OF_HEADS = (("B", "L", "RHD"), ("B", "L", "HRD"), ("B", "RHD", "L"), ("B", "HRD", "L"))
"""Arrays in which they lie side by side, of functions that are given the number of heads."""
HEAD_BY_HEAD = (("BH", "RD", "L"), ("BH", "L", "RD"))
OF_OTHER_SHAPES = frozenset({Feature.CROSS, Feature.VALUE_WIDTH, Feature.GROUPED})
"""What one array cannot hold."""


@dataclass(frozen=True)
class OneInput:
    """A function that is given query, key and value together, in an order that its answers show.

    Attributes:
        function: what is called.
        axes: of the array of all three, each in letters of (R, B, H, L, D).
        heads: its parameter for the number of heads, if it has one.
    """

    function: Callable[..., Any]
    axes: tuple[str, ...] = LIST
    heads: str = ""

    @property
    def about(self) -> str:
        """For a note."""
        letters = ", ".join(" * ".join(each).replace("R", "3").replace("D", "d") for each in self.axes)
        stacked = f"stacked along axis {self.axes.index('R')}" if "R" in self.axes else f"in one array ({letters})"
        return f"it takes query, key and value {'in a list' if self.axes == LIST else stacked}"

    @property
    def __signature__(self) -> inspect.Signature:
        own = [*signature_of(self.function).parameters.values()]
        inputs = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ("first", "second", "third")]
        options = [
            p.replace(kind=p.KEYWORD_ONLY) if p.kind is p.POSITIONAL_OR_KEYWORD else p
            for p in own[1:]
            if p.name != self.heads
        ]
        return inspect.Signature([*inputs, *options])

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The function's answer."""
        if self.heads:
            options[self.heads] = inputs[0].shape[1]
        if self.axes == LIST:
            return self.function([*inputs], **options)
        stacked = _stacked([*inputs])
        answer = self.function(_arranged(stacked, "RBHLD", self.axes), **options)
        return self._back(answer, dict(zip("RBHLD", stacked.shape, strict=True)))

    @property
    def in_blocks(self) -> tuple[str, ...]:
        """Its axes, if its documentation states that they have all queries, then all keys, then all values."""
        stated = self.heads and states_blocks(as_written(self.function))
        return tuple("RHD" if "R" in axis else axis for axis in self.axes) if stated else ()

    def _back(self, answer: Any, sizes: dict[str, int]) -> Any:
        """Its output as (B, H, L, d), where query, key and value lie side by side; else as it is."""
        if len(self.axes) > 4:
            return answer
        if isinstance(answer, tuple | list):
            return (self._back(answer[0], sizes), *answer[1:])
        letters = "".join(self.axes).replace("R", "")
        return _arranged(answer.reshape([sizes[letter] for letter in letters]), letters, tuple("BHLD"))

    def claimed(self, claims: Claims) -> Claims:
        """The claims, without shapes that one array cannot hold."""
        if self.axes == LIST:
            return claims
        fit = SizeLimits(claims.fit, fewer=False, more=False)
        return replace(claims, features=claims.features - OF_OTHER_SHAPES, fit=fit)


def of_one_input(function: Callable[..., Any]) -> Iterator[OneInput]:
    """The ways in which a function of one input may take the three; none for any other function."""
    try:
        parameters = positional(signature_of(function))
    except TargetError:
        return
    heads = next((p.name for p in parameters[1:] if p.name in HEAD_COUNTS), "")
    if parameters and {p.name for p in parameters if required(p)} - {heads} == {parameters[0].name}:
        yield from (OneInput(function, axes, heads) for axes in (OF_HEADS if heads else (*STACKED, *HEAD_BY_HEAD)))


def _stacked(inputs: list[Any]) -> Any:
    if "torch" in sys.modules and isinstance(inputs[0], sys.modules["torch"].Tensor):
        return sys.modules["torch"].stack(inputs)
    jax = None if isinstance(inputs[0], np.ndarray) else sys.modules.get("jax")
    return np.stack(inputs) if jax is None else jax.numpy.stack(inputs)


def _arranged(x: Any, letters: str, axes: tuple[str, ...]) -> Any:
    """The array in another order of its axes, some of them in one."""
    order = [letters.index(letter) for letter in "".join(axes)]
    sizes = dict(zip(letters, x.shape, strict=True))
    moved = x.permute(order) if hasattr(x, "permute") else x.transpose(order)
    return moved.reshape([prod(sizes[letter] for letter in axis) for axis in axes])
