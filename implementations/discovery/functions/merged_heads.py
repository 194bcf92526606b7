"""Functions that take heads apart, and answer with the widths of all heads side by side, (B, Lq, H * d_v)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from attention_conformance.implementations.api.safe_call import repeatable, safe_call
from attention_conformance.implementations.discovery.functions.answers import with_output_first
from attention_conformance.implementations.discovery.functions.calls import always_given, call_inputs
from attention_conformance.implementations.discovery.functions.needed_tables import of_each_kind
from attention_conformance.implementations.discovery.probe import parts_of, shape_of
from attention_conformance.implementations.discovery.signatures import required, signature_of, unfelt_like
from attention_conformance.implementations.discovery.vocabulary import unfelt

LAYOUTS = {True: (2, 3, 5, 4), False: (2, 5, 3, 4)}
"""Inputs with heads before tokens, and behind them."""
MERGED, MERGED_HEADS = (2, 5, 12), 3


@dataclass(frozen=True)
class HeadsApart:
    """A function whose output becomes one in the layout of its inputs.

    Attributes:
        function: what is called.
        heads_first: whether heads come before tokens in its inputs.
    """

    function: Callable[..., Any]
    heads_first: bool
    about: str = "its output has all heads side by side"

    @property
    def __signature__(self) -> inspect.Signature:
        return signature_of(self.function)

    def __call__(self, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
        """The function's answer."""
        answer = self.function(query, key, value, *others, **options)
        output, *rest = parts_of(answer)
        heads, tokens = query.shape[1:3] if self.heads_first else query.shape[2:0:-1]
        apart = output.reshape((query.shape[0], tokens, heads, value.shape[-1]))
        apart = apart.swapaxes(1, 2) if self.heads_first else apart
        return (apart, *rest) if rest or isinstance(answer, tuple | list) else apart


def with_plain_output(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    """The function; where its output is not the first of its answer, or has all heads side by side, one with that."""
    function = with_output_first(function, device)
    signature = safe_call(lambda: signature_of(function)).value
    inputs = None if signature is None else safe_call(partial(call_inputs, signature)).value
    if signature is None or inputs is None or inputs[1]:
        return function
    arrays = [p.name for p in signature.parameters.values() if required(p) and unfelt(p.name, 1) is not None]
    always = next(always_given(signature, inputs[0], (*arrays,)), {})
    for heads_first, shape in LAYOUTS.items():
        for x in of_each_kind(shape):
            given = {name: unfelt_like(x, unfelt(name, MERGED_HEADS)) for name in arrays}
            parts = parts_of(repeatable(partial(function, x, x, x, **always, **given)).value)
            if parts and shape_of(parts[0]) == MERGED:
                return HeadsApart(function, heads_first)
    return function
