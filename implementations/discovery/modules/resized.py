"""Subclasses that are built with embed_dim and num_heads, for a class with another constructor, as texts too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from attention_conformance.implementations.discovery.modules.constructors import ONE_HEAD, counts_heads
from attention_conformance.implementations.discovery.signatures import of_constructor, required


def resized(kind: type[nn.Module]) -> Iterator[tuple[str, type[nn.Module]]]:
    """Subclasses that are built with embed_dim and num_heads, and their text, for a class with another constructor.

    The likelier one comes first.
    """
    parameters = list(of_constructor(kind).parameters.values())
    heads = [p.name for p in parameters if counts_heads(p.name)][:1]
    widths = [p.name for p in parameters if required(p) and p.name not in heads]
    per_head = [name for name in widths if {*ONE_HEAD} & {*name.lower().split("_")}]
    for width in dict.fromkeys(("embed_dim", "embed_dim // num_heads" if per_head else "embed_dim")):
        arguments = {name: width if name in per_head else "embed_dim" for name in widths}
        text = _subclass({**arguments, **dict.fromkeys(heads, "num_heads")})
        space: dict[str, Any] = {"target": kind}
        exec(text, space)
        yield text, space["Resized"]


def _subclass(arguments: Mapping[str, str]) -> str:
    given = "".join(f"            {name}={value},\n" for name, value in arguments.items())
    return f'''\
class Resized(target):  # type: ignore[misc]  # its base is loaded when this runs
    """The class, built with one width and a number of heads."""

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__(
{given}        )'''
