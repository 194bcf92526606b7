"""Modules of query, key and value in heads that have parameters: judged inside of a layer that projects."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any, cast

import torch
from torch import nn

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.op_modules import built_in_heads
from attention_conformance.implementations.discovery.probe import HALF, parts_of
from attention_conformance.implementations.discovery.signatures import positional, role
from attention_conformance.implementations.discovery.vocabulary import INPUTS

LAYOUTS = ("BHLD", "BLHD")
SAMPLES, HEADS, TOKENS, WIDTH = 2, 3, 5, 8
"""Sizes of the call in which it shows where its heads lie."""


def in_layer(kind: Any) -> type[nn.Module] | None:
    """A layer that projects inputs (B, L, E), calls the module in heads, and projects its output; None for any other.

    Its numbers of the module are parameters of the layer, which are then judged as those of any layer are.
    """
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return None
    forward = safe_call(lambda: inspect.signature(kind.forward)).value
    inputs = [p.name for p in positional(forward)[1:4]] if forward is not None else []
    if forward is None or tuple(map(role, inputs)) != INPUTS:
        return None
    with torch.random.fork_rng(devices=[]):
        layout = next((each for each in LAYOUTS if safe_call(partial(_attends, kind, each)).value), None)
    return None if layout is None else _layer(kind, forward, inputs, layout)


def _attends(kind: type[nn.Module], layout: str) -> bool:
    """Whether the last token has a part of the value of the first one, in each head that of the same head alone."""
    made = built_in_heads(kind, WIDTH, HEADS)
    x = torch.randn(_split(torch.zeros(SAMPLES, TOKENS, HEADS * WIDTH), HEADS, layout).shape)
    changed = x.clone()
    changed[_at(layout, head=0, token=0)] += 1.0
    with torch.no_grad():
        alike = torch.ones_like(x)  # keys, of which no factor of the scores leaves some out
        first, second = (parts_of(made(x, alike, value))[0] for value in (x, changed))
    differs = (first - second).abs() > HALF
    last, others = differs[_at(layout, head=0, token=-1)], differs[_at(layout, head=slice(1, None), token=slice(None))]
    return first.shape == x.shape and bool(last.any()) and not bool(others.any())


def _at(layout: str, head: int | slice, token: int | slice) -> tuple[Any, ...]:
    return (slice(None), *((head, token) if layout == "BHLD" else (token, head)))


def _split(x: torch.Tensor, heads: int, layout: str) -> torch.Tensor:
    """(B, L, E) in heads."""
    apart = x.reshape(*x.shape[:-1], heads, -1)
    return apart.transpose(1, 2) if layout == "BHLD" else apart


def _layer(kind: type[nn.Module], forward: inspect.Signature, inputs: list[str], layout: str) -> type[nn.Module]:
    class Layer(nn.Module):
        def __init__(self, embed_dim: int, num_heads: int) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
            self.num_heads = num_heads
            self.inner = built_in_heads(kind, embed_dim // num_heads, num_heads)

        def forward(self, *given: torch.Tensor, **options: Any) -> Any:
            named = dict(zip(inputs, given, strict=False))
            named |= {name: options.pop(name) for name in inputs if name in options}
            layers = (self.q_proj, self.k_proj, self.v_proj)
            heads = [
                _split(layer(named[name]), self.num_heads, layout) for layer, name in zip(layers, inputs, strict=True)
            ]
            output, *others = parts_of(self.inner(*heads, **options))
            merged = self.out_proj((output.transpose(1, 2) if layout == "BHLD" else output).flatten(2))
            return (merged, *others) if others else merged

    Layer.forward.__signature__ = forward  # type: ignore[attr-defined]  # what inspect.signature reads
    Layer.__name__ = Layer.__qualname__ = kind.__name__
    Layer.__doc__, Layer.original = kind.__doc__, staticmethod(kind)  # type: ignore[attr-defined]
    return cast("type[nn.Module]", Layer)
