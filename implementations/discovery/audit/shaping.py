"""Shaping: a module class with a constructor of its own, given that of nn.MultiheadAttention by a subclass."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import nn

from attention_conformance.implementations.discovery.audit.calling import HEAD_COUNTS
from attention_conformance.implementations.discovery.signatures import required

OF_HEADS = ("head", "k", "v", "q")
"""Words in the name of a width that may be that of one head, or of all heads together."""


def shapes(kind: type[nn.Module]) -> Iterator[tuple[str, type[nn.Module]]]:
    """The text of a subclass that is built with a width and a number of heads, and the subclass; the likelier first."""
    parameters = list(inspect.signature(kind).parameters.values())
    heads = [p.name for p in parameters if _counts_heads(p.name)][:1]
    widths = [p.name for p in parameters if required(p) and p.name not in heads]
    per_head = [name for name in widths if {*OF_HEADS} & {*name.lower().split("_")}]
    for width in dict.fromkeys(("embed_dim", "embed_dim // num_heads" if per_head else "embed_dim")):
        given = {name: width if name in per_head else "embed_dim" for name in widths}
        given |= dict.fromkeys(heads, "num_heads")
        text = _text(given)
        space: dict[str, Any] = {"target": kind}
        exec(text, space)
        yield text, space["Shaped"]


def _counts_heads(name: str) -> bool:
    words = {*name.lower().split("_")}
    return name in HEAD_COUNTS or (bool(words & {"head", "heads"}) and not words & {"size", "dim", "width"})


def _text(given: dict[str, str]) -> str:
    return "\n".join(
        [
            "class Shaped(target):  # type: ignore[misc]  # whatever it is",
            '    """The class, built with one width and a number of heads."""',
            "",
            "    def __init__(self, embed_dim: int, num_heads: int) -> None:",
            "        super().__init__(",
            *(f"            {name}={value}," for name, value in given.items()),
            "        )",
        ]
    )
