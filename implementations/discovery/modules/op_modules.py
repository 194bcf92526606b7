"""Classes without parameters: attention of query, key and value that only has settings, such as a temperature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache, partial, update_wrapper
from typing import Any, cast

import torch
from torch import nn

from attention_conformance.implementations.adapters.torch_module import in_mode
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.causal_names import flags_of_name
from attention_conformance.implementations.discovery.modules.constructor_names import (
    BY_NAME,
    LAYERS,
    USUAL,
    Size,
    settings_of,
    settings_parameter,
    size_of,
    value_of,
)
from attention_conformance.implementations.discovery.modules.emptying import emptied, emptied_by
from attention_conformance.implementations.discovery.modules.held_arrays import arrays_in, method_of
from attention_conformance.implementations.discovery.probe import parts_of, shape_of
from attention_conformance.implementations.discovery.signatures import is_variadic, positional, required, role
from attention_conformance.implementations.discovery.vocabulary import OPTIONS

WIDTHS = ("dim", "d_k", "d_head", "dim_head", "head_dim", "d_model")
"""Parameters of such a constructor that take the width of a head."""
OF_ALL = ("dim", "d_model")
"""Those that take the width of all heads, where it has a number of heads, too."""


def as_function(kind: type) -> Callable[..., Any] | None:
    """The class as a function of query, key and value in heads, or of one input; None where it has parameters.

    A class that is no module is called through its __call__, or a method named like one. It is built for the width of a
    head, which is that of the query, or for a number of heads, which the function then takes, as it takes the number of
    the layer that it is.
    """
    if issubclass(kind, torch.autograd.Function):
        return _applied(kind)
    name = "forward" if issubclass(kind, nn.Module) else method_of(kind)
    method: Any = getattr(kind, name, None)
    undefined = method is nn.Module.forward or not inspect.isfunction(method)
    inputs = [] if undefined else positional(inspect.signature(method))[1:]
    if not inputs:
        return None
    alone = len(inputs) == 1 or (role(inputs[0].name) is None and not required(inputs[1]))
    with torch.random.fork_rng(devices=[]):
        made = safe_call(lambda: built_in_heads(kind, 8, 2)).value
    if made is None or _holds_parameters(made):
        return None
    build = cache(lambda width, heads, **own: built_in_heads(kind, width, heads, own))
    layer = {name: first for name, first in _layer(kind).items() if name not in inspect.signature(method).parameters}
    parameters = list(inspect.signature(method).parameters.values())[1:]
    heads = next((p.name for p in inspect.signature(kind).parameters.values() if _counts_heads(p)), "")
    resets = emptied_by(kind)
    merged = bool(heads) and len(inputs) > 2 and not alone and not _takes_heads(_called(made, name))

    def call(first: Any, *others: Any, **options: Any) -> Any:
        count = options.pop(heads) if heads and (merged or alone) else first.shape[1]
        own = {name: options.pop(name, usual) for name, usual in layer.items()}
        made = build(first.shape[-1] // count if merged else first.shape[-1], count, **own)
        whole = partial(_called(made, name), first, *others, **options)
        return emptied(getattr(made, resets), whole) if resets else whole()

    named = cast(Any, update_wrapper(call, kind, assigned=("__name__", "__module__", "__doc__"), updated=()))
    if merged:
        parameters.append(inspect.Parameter(heads, inspect.Parameter.KEYWORD_ONLY))
    elif heads and alone:
        parameters.insert(1, inspect.Parameter(heads, inspect.Parameter.POSITIONAL_OR_KEYWORD))
    parameters += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=n) for name, n in layer.items()]
    parameters.sort(key=lambda p: p.kind)
    named.__signature__ = inspect.Signature(parameters)  # what inspect.signature reads
    return cast(Callable[..., Any], named)


def _called(made: Any, name: str) -> Callable[..., Any]:
    called: Callable[..., Any] = made if isinstance(made, nn.Module) else getattr(made, name)
    return called


def _takes_heads(call: Callable[..., Any]) -> bool:
    """Whether it takes query, key and value with an axis of heads, and keeps that or puts heads side by side.

    The keys may be transposed.
    """
    x = torch.randn(2, 2, 5, 8)
    given = [(each, key, each) for each in (x, x.numpy()) for key in (each, each.swapaxes(2, 3))]
    parts = (parts_of(safe_call(partial(call, *each)).value) for each in given)
    shapes = (shape_of(each[0]) for each in parts if each)
    return any(shape in ((2, 2, 5, 8), (2, 5, 16)) for shape in shapes)


def _applied(kind: Any) -> Callable[..., Any]:
    """A torch.autograd.Function as the function that applies it."""
    parameters = list(inspect.signature(kind.forward).parameters.values())
    signature = inspect.Signature(parameters[1:])  # without the context

    def call(*given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        return kind.apply(*bound.args)

    applied = cast(Any, update_wrapper(call, kind, assigned=("__name__", "__module__", "__doc__"), updated=()))
    applied.__signature__ = signature  # what inspect.signature reads
    return cast("Callable[..., Any]", applied)


def _further(parameter: inspect.Parameter) -> Size | None:
    """What else a constructor may have to be given: heads, tokens, or that nothing more is done."""
    if parameter.annotation in (bool, "bool"):
        return Size.FLAG
    size = size_of(parameter.name)
    return size if size in (Size.HEADS, Size.LENGTH, Size.SAMPLES, Size.FLAG) else None


def _holds_parameters(made: Any) -> bool:
    """Whether a module has parameters, but for a number that is none to learn, or another object has matrices."""
    if isinstance(made, nn.Module):
        return any(each.requires_grad or each.numel() > 1 for each in made.parameters())
    return any(matrix.ndim >= 2 for matrix in arrays_in(made))


def _counts_heads(parameter: inspect.Parameter) -> bool:
    return size_of(parameter.name) is Size.HEADS


def _layer(kind: type) -> dict[str, int]:
    """Its parameter for the number of the layer that it is, and what that is by default, or of the first."""
    found = [p for p in inspect.signature(kind).parameters.values() if p.name in LAYERS]
    return {p.name: p.default if type(p.default) is int else LAYERS[p.name] for p in found}


def _is_a_number(parameter: inspect.Parameter) -> bool:
    """Whether its default is a number of its own: no flag, and none that multiplies nothing."""
    default = parameter.default
    return isinstance(default, int | float) and not isinstance(default, bool) and default not in (0, 1)


NOTHING: Mapping[str, object] = {}


def built_in_heads(kind: Callable[..., Any], width: int, heads: int, own: Mapping[str, object] = NOTHING) -> Any:
    """It, for this width of a head and so many heads; in evaluation mode where its rate of dropout is fixed.

    What is its `own` is given before all that is known by names.

    Raises:
        TypeError: its constructor needs something that is not known.
    """
    given: dict[str, Any] = {}
    own = dict.fromkeys(flags_of_name(kind), True) | dict(own)
    signature = inspect.signature(kind)
    settings, counted = settings_parameter(signature), any(map(_counts_heads, signature.parameters.values()))
    for parameter in signature.parameters.values():
        name = parameter.name.lower()
        if is_variadic(parameter):
            continue
        if parameter.name in own:
            given[parameter.name] = own[parameter.name]
        elif parameter.name == settings:
            given[settings] = settings_of(kind, settings, width * heads, heads, lenient=True)
        elif name in OPTIONS["scale"].parameters and (required(parameter) or _is_a_number(parameter)):
            given[parameter.name] = width**-0.5
        elif size_of(name) is Size.RATE:
            given[parameter.name] = 0.0
        elif required(parameter) and name == "temperature":
            given[parameter.name] = width**0.5
        elif required(parameter) and (name in WIDTHS or BY_NAME.get(name) is Size.HEAD_WIDTH):
            given[parameter.name] = width * heads if name in OF_ALL and counted else width
        elif required(parameter) and (size := _further(parameter)) is not None:
            given[parameter.name] = value_of(size, width * heads, heads)
        elif name in LAYERS and (required(parameter) or parameter.default is None):
            given[parameter.name] = LAYERS[name]
        elif required(parameter) and name in USUAL:
            given[parameter.name] = USUAL[name]
    made = kind(**given)
    drops = isinstance(made, nn.Module) and any(isinstance(each, nn.Dropout) and each.p for each in made.modules())
    return in_mode(made, False) if drops else made
