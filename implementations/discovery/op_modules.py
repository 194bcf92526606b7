"""Modules without parameters: attention of query, key and value that only has settings, such as a temperature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, update_wrapper
from typing import Any, cast

import torch
from torch import nn

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.constructor_names import BY_NAME, Size, size_of
from attention_conformance.implementations.discovery.signatures import is_variadic, positional, required

WIDTHS = ("dim", "d_k", "d_head", "dim_head", "head_dim", "d_model")
"""Parameters of such a constructor that take the width of a head."""


def as_function(kind: type[nn.Module]) -> Callable[..., Any] | None:
    """The module as a function of query, key and value in heads; None where it has parameters, or takes fewer inputs.

    It is built for the width of a head, which is that of the query.
    """
    if kind.forward is nn.Module.forward or len(positional(inspect.signature(kind.forward))) < 4:
        return None
    with torch.random.fork_rng(devices=[]):
        module = safe_call(lambda: _built(kind, 8)).value
    if module is None or any(True for _ in module.parameters()):
        return None
    build = cache(lambda width: _built(kind, width))

    def call(query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
        return build(query.shape[-1])(query, key, value, *others, **options)

    named = cast(Any, update_wrapper(call, kind, assigned=("__name__", "__module__", "__doc__"), updated=()))
    parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    named.__signature__ = inspect.Signature(parameters)  # what inspect.signature reads
    return cast(Callable[..., Any], named)


def _built(kind: type[nn.Module], width: int) -> nn.Module:
    """It, for this width of a head.

    Raises:
        TypeError: its constructor needs something that is not known.
    """
    given: dict[str, Any] = {}
    for parameter in inspect.signature(kind).parameters.values():
        name = parameter.name.lower()
        if is_variadic(parameter):
            continue
        if size_of(name) is Size.RATE:
            given[parameter.name] = 0.0
        elif required(parameter) and name == "temperature":
            given[parameter.name] = width**0.5
        elif required(parameter) and (name in WIDTHS or BY_NAME.get(name) is Size.HEAD_WIDTH):
            given[parameter.name] = width
    return kind(**given)
