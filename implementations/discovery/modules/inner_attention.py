"""Modules of projected query, key and value that have parameters: judged inside of a layer that projects."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, cast

import torch
from torch import nn

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.functions.needed_arrays import (
    LAYOUTS,
    LOOKS,
    NeededArrays,
    in_layout,
    out_of_layout,
)
from attention_conformance.implementations.discovery.modules.attempts import attempts
from attention_conformance.implementations.discovery.modules.constructors import Constructor, built
from attention_conformance.implementations.discovery.modules.op_modules import built_in_heads
from attention_conformance.implementations.discovery.modules.parameters import named_parameters
from attention_conformance.implementations.discovery.probe import parts_of
from attention_conformance.implementations.discovery.signatures import positional, role
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.discovery.vocabulary import INPUTS

MOST_MAKES = 8
"""Ways to build a module that are looked at."""
IN_HEADS = tuple(layout for layout in LAYOUTS if "H" in layout)
SIZES = LOOKS[0]
"""Sizes of the call in which it shows where its heads lie."""


def in_layer(kind: Any) -> type[nn.Module] | None:
    """A layer that projects inputs (B, L, E), calls the module in heads, and projects its output; None for any other.

    Its numbers of the module are parameters of the layer, which are then judged as those of any layer are.
    """
    if (interface := _interface(kind)) is None:
        return None
    with torch.random.fork_rng(devices=[]):
        layout = next((each for each in IN_HEADS if safe_call(partial(_attends, kind, each)).value), None)
    return None if layout is None else _layer(kind, *interface, layout)


def _interface(kind: Any) -> tuple[inspect.Signature, list[str]] | None:
    """The signature of a module's forward and its inputs, if these are query, key and value."""
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return None
    forward = safe_call(lambda: inspect.signature(kind.forward)).value
    inputs = [p.name for p in positional(forward)[1:4]] if forward is not None else []
    return None if forward is None or tuple(map(role, inputs)) != INPUTS else (forward, inputs)


def _called(module: nn.Module, layout: str) -> NeededArrays:
    """The module, as a function of inputs in this layout that needs no arrays."""
    return NeededArrays(lambda *given, **options: parts_of(module(*given, **options)), {}, {}, layout)


def _attends(kind: type[nn.Module], layout: str) -> bool:
    """Whether it does, with equal keys, of which no factor of the scores leaves some out."""
    called = _called(built_in_heads(kind, SIZES.width, SIZES.heads), layout)
    return called.attends(SIZES, torch.full(called.shape(SIZES), 0.5))


def _layer(kind: type[nn.Module], forward: inspect.Signature, inputs: list[str], layout: str) -> type[nn.Module]:
    class Layer(nn.Module):
        def __init__(self, embed_dim: int, num_heads: int) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
            self.num_heads = num_heads
            self.inner = built_in_heads(kind, embed_dim // num_heads, num_heads)

        def forward(self, *given: torch.Tensor, **options: Any) -> Any:
            projected = _projected((self.q_proj, self.k_proj, self.v_proj), inputs, given, options)
            heads = [in_layout(each, layout, self.num_heads) for each in projected]
            output, *others = _called(self.inner, layout)(heads, {}, options)
            merged = self.out_proj(out_of_layout(output, layout))
            return (merged, *others) if others else merged

    return _named(Layer, kind, forward)


def _projected(
    layers: Sequence[nn.Module], inputs: Sequence[str], given: Sequence[torch.Tensor], options: dict[str, Any]
) -> list[torch.Tensor]:
    """What the layers make of the inputs, which are given by position or taken out of the options by name."""
    named = dict(zip(inputs, given, strict=False))
    named |= {name: options.pop(name) for name in inputs if name in options}
    return [layer(named[name]) for layer, name in zip(layers, inputs, strict=True)]


def projected_first(kind: Any) -> type[nn.Module] | None:
    """A layer that projects query, key and value for a module of heads side by side that projects none of these.

    None for any other. What the module holds is then of the layer: the projection of the output, where it has one.
    """
    if (interface := _interface(kind)) is None:
        return None
    make = next((each for each in islice(_makes(kind), MOST_MAKES) if _projects_no_input(each)), None)
    return None if make is None else _projecting(make, *interface)


def _makes(kind: type[nn.Module]) -> Iterator[Constructor]:
    with suppress(TargetError):
        yield from attempts(kind)


def _projects_no_input(make: Constructor) -> bool:
    """Whether it can be built, and holds parameters that are known, of the output alone."""
    module = safe_call(partial(built, make)).value
    if module is None:
        return False
    held = {*named_parameters(module)}
    return "w_o" in held and held <= {"w_o", "b_o"}


def _projecting(make: Constructor, forward: inspect.Signature, inputs: list[str]) -> type[nn.Module]:
    class Layer(nn.Module):
        completed = make.completed

        def __init__(self, embed_dim: int, num_heads: int) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(3))
            self.inner = make(embed_dim, num_heads)

        def forward(self, *given: torch.Tensor, **options: Any) -> Any:
            projected = _projected((self.q_proj, self.k_proj, self.v_proj), inputs, given, options)
            return self.inner(*projected, *given[3:], **options)

    return _named(Layer, make.kind, forward)


def _named(layer: Any, kind: Any, forward: inspect.Signature) -> type[nn.Module]:
    """The layer with the name, the documentation and the signature of the module inside."""
    layer.forward.__signature__ = forward  # what inspect.signature reads
    layer.forward.__doc__ = kind.forward.__doc__
    layer.__name__ = layer.__qualname__ = kind.__name__
    layer.__doc__, layer.original = kind.__doc__, staticmethod(kind)
    return cast("type[nn.Module]", layer)
