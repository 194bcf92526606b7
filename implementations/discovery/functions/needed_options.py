"""Functions that have to be given an option: what changes nothing where a problem has none, as zeros for a bias."""

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
class NeededOption:
    """A function one of whose options may be left out.

    Attributes:
        function: it.
        name: the parameter that takes the option.
        neutral: of query and key, what it is given where a problem has none.
        about: that, for a note.
    """

    function: Callable[..., Any]
    name: str
    neutral: Callable[[Any, Any], Any]
    about: str

    @property
    def __signature__(self) -> inspect.Signature:
        return dispensable(signature_of(self.function), self.name)

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The function's answer."""
        if options.get(self.name) is None:
            options[self.name] = self.neutral(query, key)
        return self.function(query, key, value, **options)


def with_needed_slopes(function: Callable[..., Any]) -> NeededOption | None:
    """The function, given slopes of zero unless it is given others; None where it needs none, or is not called so."""
    name = _only_needed(function, "alibi_slopes")
    for axis in (1, 2) if name else ():
        about = f"given zeros in {name!r} where a problem has no slopes"
        made = NeededOption(function, name, partial(_no_slopes, axis), about)
        if any(safe_call(partial(made, x, x, x)).value is not None for x in _inputs(axis)):
            return made
    return None


def with_needed_bias(function: Callable[..., Any]) -> NeededOption | None:
    """The function, given zeros unless it is given a bias; None where it needs none, or takes heads in an axis."""
    if not (name := _only_needed(function, "float_mask")):
        return None
    made = NeededOption(function, name, _no_bias, f"given zeros in {name!r} where a problem has no bias")

    def answers(shape: tuple[int, ...]) -> bool:
        return any(safe_call(partial(made, x, x, x)).value is not None for x in of_each_kind(shape))

    return made if answers((6, 5, 4)) and not answers((2, 3, 5, 4)) else None


def _only_needed(function: Callable[..., Any], option: str) -> str:
    """Its parameter that takes this option, if it needs that and nothing else; otherwise empty."""
    signature = safe_call(lambda: signature_of(function)).value
    own = [] if signature is None else [p.name for p in signature.parameters.values() if required(p)][3:]
    return own[0] if len(own) == 1 and KNOWN_NAMES.get(own[0]) == option else ""


def _no_slopes(axis: int, query: Any, _: Any) -> Any:
    """Zeros (H,), of the heads in an axis of the query."""
    heads = query.shape[axis]
    return query.new_zeros(heads).float() if hasattr(query, "new_zeros") else np.zeros(heads, np.float32)


def _no_bias(query: Any, key: Any) -> Any:
    """Zeros (1, Lq, Lk), of inputs with heads and samples in one axis."""
    shape = (1, query.shape[-2], key.shape[-2])
    return query.new_zeros(shape) if hasattr(query, "new_zeros") else np.zeros(shape, query.dtype)


def _inputs(axis: int) -> Iterator[Any]:
    """Arrays of each kind and, of torch, dtype, with 3 heads on an axis."""
    arrays = of_each_kind((2, 3, 5, 4) if axis == 1 else (2, 5, 3, 4))
    yield from arrays
    yield from (arrays[0].double(), arrays[0].bfloat16(), arrays[0].half())
