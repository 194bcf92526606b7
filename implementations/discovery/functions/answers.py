"""Answers of functions: where in one the output is, seen by what doubles with the values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.calls import (
    EXTENTS,
    KINDS,
    Attempt,
    FunctionCall,
    always_given,
    call_inputs,
)
from attention_conformance.implementations.discovery.functions.libraries import kinds_for
from attention_conformance.implementations.discovery.probe import Floats, near, parts_of, wide
from attention_conformance.implementations.discovery.signatures import role, signature_of
from attention_conformance.implementations.discovery.targets.loading import TargetError


@dataclass(frozen=True)
class OutputFirst:
    """A function whose answer becomes a tuple that begins with the output.

    Attributes:
        function: what is called.
        part: where the output is in its answer.
    """

    function: Callable[..., Any]
    part: int

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    @property
    def about(self) -> str:
        """For a note."""
        return f"its output is part {self.part} of its answer" if self.part else ""

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The output, and the other parts after it."""
        parts = parts_of(self.function(*inputs, **options))
        others = (*parts[: self.part], *parts[self.part + 1 :])
        return (parts[self.part], *others) if others else parts[0]


def with_output_first(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """The function, or where its answer is no tuple that begins with the output, one that answers so.

    The output is the part that doubles when the values do; the first one where none does.
    """
    try:
        inputs, keyword = call_inputs(signature_of(function))
    except TargetError:
        return function  # a later call reports it
    number = next((n for n, name in enumerate(inputs) if role(name) == "value"), 2)
    for attempt, arrays in _attempts(function, inputs, keyword, device):
        answer = safe_call(partial(attempt.answer, arrays)).value
        if answer is None:
            continue
        parts = parts_of(answer)
        if len(parts) == 1 and parts[0] is answer:
            return function
        part = _linear(attempt, arrays, number, parts)
        return function if isinstance(answer, tuple) and not part else OutputFirst(function, part)
    return function


def _attempts(
    function: Callable[..., Any], inputs: tuple[str, ...], keyword: bool, device: str
) -> Iterator[tuple[Attempt, list[Floats]]]:
    rng = np.random.default_rng(2)
    kinds = kinds_for(function, KINDS)
    always = next(always_given(signature_of(function), inputs))
    for rank, extent, framework in product((4, 3, 2), EXTENTS, kinds):
        call = FunctionCall(framework, inputs, keyword, extent=extent, always=always)
        yield Attempt(function, call, rank, device), [rng.standard_normal((extent,) * rank) for _ in inputs]


def _wide_pair(before: Any, after: Any) -> tuple[Floats, Floats]:
    return wide(before), wide(after)


def _linear(attempt: Attempt, arrays: list[Floats], number: int, parts: tuple[Any, ...]) -> int:
    doubled = [2.0 * array if n == number else array for n, array in enumerate(arrays)]
    others = parts_of(safe_call(lambda: attempt.answer(doubled)).value)
    for at, (before, after) in enumerate(zip(parts, others, strict=False)):
        pair = safe_call(partial(_wide_pair, before, after)).value
        if pair is not None and pair[0].shape == arrays[number].shape and near(pair[1], 2.0 * pair[0]):
            return at
    return 0
