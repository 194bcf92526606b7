"""Weights of fewer heads of keys that plain classes are given: columns or rows of them, as a call shows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.constructor_names import GROUPS, NAMES, Size
from attention_conformance.implementations.discovery.modules.forwards import inputs_in
from attention_conformance.implementations.discovery.modules.given_weights import Axes, Weights, number_in, width_in
from attention_conformance.implementations.discovery.modules.neutrals import combined
from attention_conformance.implementations.discovery.probe import parts_of
from attention_conformance.implementations.discovery.signatures import required

MOST = 24
"""Combinations of what is given to parameters that are no inputs."""
TOKENS = 3
"""Those of the call that shows the axes: other numbers than 1, which any axis fits."""


def weights_given(
    names: Sequence[str], given: Mapping[str, Any], build: Callable[[Mapping[str, Any]], Callable[..., Any]]
) -> dict[str, Any]:
    """The weights that a constructor is given, of as many heads of keys and values as it is built with.

    `build` gives the method that is the call of what is built with some.

    Raises:
        ValueError: fewer heads of keys, and it answers neither with columns nor with rows of them.
    """
    width = width_in(given)
    heads, kv_heads = number_in(given, NAMES[Size.HEADS]), number_in(given, GROUPS)
    if not 0 < kv_heads < heads:
        return {name: Weights(width).named(name) for name in names}
    for axes in (Axes.FLAT, Axes.ROWS):
        made = {name: Weights(width, heads, axes=axes, kv_heads=kv_heads).named(name) for name in names}
        if answers(partial(build, made), width, heads):
            return made
    raise ValueError(f"it answers with no weights of {kv_heads} heads of keys next to {heads}")


def answers(build: Callable[[], Callable[..., Any]], width: int, heads: int) -> bool:
    """Whether what is built answers to ones as tokens, in their form."""
    import torch  # only here: names are looked at without torch, too

    method = safe_call(build).value
    own = None if method is None else safe_call(lambda: inspect.signature(method)).value
    inputs = None if own is None else safe_call(lambda: [p.name for p in inputs_in(own)]).value
    if method is None or own is None or not inputs:
        return False
    needed = [p.name for p in own.parameters.values() if required(p) and p.name not in inputs]
    x = torch.ones(2, TOKENS, width)
    for tables in islice(combined(needed), MOST):
        options = {name: _array(each.given(x, x, heads)) for name, each in tables.items()}
        answer = safe_call(partial(method, **dict.fromkeys(inputs, x.numpy()), **options)).value
        if any(np.shape(part) == tuple(x.shape) for part in parts_of(answer)):
            return True
    return False


def _array(given: Any) -> Any:
    if isinstance(given, tuple):
        return tuple(map(_array, given))
    return given.numpy() if hasattr(given, "numpy") else given
