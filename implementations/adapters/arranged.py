"""Arranged parameters: weights that a module keeps in other axes than nn.Linear, all heads in one or one head each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

from attention_conformance.spec.problem import Array

Tensors: TypeAlias = Mapping[str, torch.Tensor]
CANONICAL = "rehd"
"""The axes of all weights of a parameter: which of its names, width of the module's input or output, head, width."""


@dataclass(frozen=True)
class Arranged:
    """A parameter that holds weights or biases in axes of its own.

    Attributes:
        names: in `Problem.parameters`, in the order of the axis r.
        axes: of the parameter, each a group of letters of `CANONICAL`: nn.Linear has ("hd", "e"), three projections
            in one ("rhd", "e"), weights for einsum ("h", "e", "d").
        heads, kv_heads: the numbers of heads, of the query and of key and value.
        head: the only head that it holds; None for all.
    """

    names: tuple[str, ...]
    axes: tuple[str, ...]
    heads: int = 1
    kv_heads: int = 1
    head: int | None = None

    def stored(self, given: Tensors) -> torch.Tensor:
        """What the parameter holds, flat, for the problem's tensors."""
        whole = torch.stack([_split(given[name].detach(), name, self._heads(name)) for name in self.names])
        part = whole if self.head is None else whole[:, :, self.head : self.head + 1]
        return part.permute(self._order).reshape(-1)

    def unpacked(self, gradient: Array, like: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
        """An array of the parameter as arrays of its names, which have these shapes; other heads are 0."""
        whole = (len(self.names), *_extents(like[self.names[0]], self.names[0], self._heads(self.names[0])))
        extents = whole if self.head is None else (*whole[:2], 1, whole[3])
        flat = np.asarray(gradient).reshape([extents[axis] for axis in self._order])
        parts = flat.transpose(np.argsort(self._order))
        every = np.zeros(whole, parts.dtype)
        every[:, :, slice(None) if self.head is None else slice(self.head, self.head + 1)] = parts
        return {name: _joined(part, name, like[name]) for name, part in zip(self.names, every, strict=True)}

    @property
    def _order(self) -> list[int]:
        letters = "".join(self.axes)
        return [CANONICAL.index(letter) for letter in (*(c for c in CANONICAL if c not in letters), *letters)]

    def _heads(self, name: str) -> int:
        return self.kv_heads if name[2] in "kv" else self.heads


def _extents(shape: tuple[int, ...], name: str, heads: int) -> tuple[int, int, int]:
    """The extents of (e, h, d)."""
    if name == "b_o":
        return shape[0], 1, 1
    if name.startswith("b_"):
        return 1, heads, shape[0] // heads
    wide, mixed = (shape[1], shape[0]) if name == "w_o" else shape
    return wide, heads, mixed // heads


def _split(array: torch.Tensor, name: str, heads: int) -> torch.Tensor:
    extents = _extents(tuple(array.shape), name, heads)
    return (array.T if name == "w_o" else array).reshape(extents)


def _joined(part: Array, name: str, shape: tuple[int, ...]) -> Array:
    joined = part.reshape(shape[::-1] if name == "w_o" else shape)
    return np.ascontiguousarray(joined.T if name == "w_o" else joined)
