"""Unknown options that hide keys by a number that they have by default: they are given one that hides nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.signatures import required, signature_of
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES

TOKENS = 8
SHAPES = ((1, 1, TOKENS, TOKENS), (1, TOKENS, TOKENS), (TOKENS, TOKENS))
NUMBERS = (0, 1, 4 * TOKENS)
"""By which options of the field hide nothing: a prefix or globals of none, a stride of one, a span of all tokens."""
OF_PATTERNS = {
    *("prefix", "stride", "strides", "global", "globals", "sink", "sinks", "span", "dilation", "dilated", "random"),
    *("memory", "lookahead", "lookback", "radius", "neighborhood", "topk", "top", "sparsity", "local", "left", "right"),
}
"""Words in the names of numbers that choose keys; those of blocks change no answer, but where there is a mistake."""
FAINT = 1e-6
"""A weight that is none, where scores are small."""


@dataclass(frozen=True)
class NeutralNumber:
    """A function with another number by default.

    Attributes:
        function: it.
        name: the option.
        number: what it is given unless it is given another one.
        why: for a note.
    """

    function: Callable[..., Any]
    name: str
    number: int
    why: str = "what it hides by default is unknown"

    @property
    def __signature__(self) -> inspect.Signature:
        own = signature_of(self.function)
        every = [p.replace(default=self.number) if p.name == self.name else p for p in own.parameters.values()]
        return own.replace(parameters=every)

    @property
    def about(self) -> str:
        """For a note."""
        return f"given {self.name}={self.number}: {self.why}"

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """The function's answer."""
        named = self.name in options or len(inputs) > 3
        return self.function(*inputs, **options, **({} if named else {self.name: self.number}))


def with_neutral_number(function: Callable[..., Any]) -> NeutralNumber | None:
    """The function with such a number; None where it hides nothing by default, or the keys after a query alone."""
    signature = safe_call(lambda: signature_of(function)).value
    parameters = [] if signature is None else [*signature.parameters.values()][3:]
    numbers = [p.name for p in parameters if type(p.default) is int and p.name not in KNOWN_NAMES]
    names = [name for name in numbers if {*name.lower().split("_")} & OF_PATTERNS]
    if not names or any(map(required, parameters)):
        return None
    for x in (x for shape in SHAPES for x in of_each_kind(shape)):
        if (seen := _seen(function, x * 0.1)) is None:
            continue
        if _is_usual(seen):
            return None
        for name, number in product(names, NUMBERS):
            other = _seen(partial(function, **{name: number}), x * 0.1)
            if other is not None and _is_usual(other):
                return NeutralNumber(function, name, number)
    return None


def _seen(function: Callable[..., Any], x: Any) -> NDArray[np.bool_] | None:
    """(Lq, Lk): which keys have weight, as values that are unit vectors show them; None where it raises."""
    units = x * 0
    for token in range(TOKENS):
        units = _with_one(units, token)
    answer = safe_call(partial(function, x, x, units)).value
    answer = answer[0] if isinstance(answer, tuple | list) and answer else answer
    weights = safe_call(lambda: np.asarray(answer, np.float64).reshape(TOKENS, TOKENS)).value
    return None if weights is None or not np.isfinite(weights).all() else weights > FAINT


def _with_one(units: Any, token: int) -> Any:
    if hasattr(units, "at"):  # an array of JAX
        return units.at[..., token, token].set(1.0)
    units[..., token, token] = 1.0
    return units


def _is_usual(seen: Any) -> bool:
    return bool(seen.all()) or np.array_equal(seen, np.tri(TOKENS, dtype=np.bool_))
