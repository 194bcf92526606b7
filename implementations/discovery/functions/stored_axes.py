"""How serving kernels store their arrays: axes by letters, and arrays of (B, H, L, d) laid out in them and back."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.jax_op import is_jax, library_of
from attention_conformance.spec.cases import Case

OP = "BHLD"
TOGETHER = {"T": "BL", "E": "HD", "N": "PS"}
"""Axes that hold several: the tokens of all samples, the widths of all heads, and the places of all pages."""
VECTOR = 16
"""Bytes of a vector in which kernels read keys: an axis C has those of a width, and the last one, X, their numbers."""
LETTERS = {
    "T": "tokens of all samples",
    "E": "H * d",
    "D": "d",
    "P": "pages",
    "S": "page_size",
    "N": "tokens",
    "C": "d / x",
    "X": "x",
}
"""What axes are called in a note."""


@dataclass(frozen=True)
class Storage:
    """How a serving kernel has its arrays.

    Attributes:
        query, key, output: axes in the letters of (B, H, L, D), of `TOGETHER`, of pages (P) and places in one (S); 2
            and 3 where so many arrays are stacked, and 1 for an axis of that extent.
        logs: axes of what it returns next to its output; empty: nothing that is known.
        integers: "int32", "int64", or "list" where lengths are numbers of Python.
        pages: tokens of a page of which it needs a multiple.
        values: axes of values; empty: those of keys.
    """

    query: str
    key: str
    output: str = ""
    logs: str = ""
    integers: str = "int32"
    pages: int = 1
    values: str = ""

    @property
    def vectors(self) -> bool:
        """Whether widths of keys lie in vectors."""
        return "X" in self.key

    @property
    def about(self) -> str:
        """For a note."""
        every = {"query is": self.query, "keys are": self.key, "values are": self.values}
        shown = {name: ", ".join(LETTERS.get(axis, axis) for axis in axes) for name, axes in every.items() if axes}
        return ", ".join(f"its {name} ({axes})" for name, axes in shown.items())

    @property
    def published(self) -> bool:
        """Whether published interfaces have it: several queries, and heads next to the width."""
        return not self.single and self.key.endswith("HD")

    @property
    def single(self) -> bool:
        """Whether each sample has one query."""
        return not {"L", "T"} & {*self.query}


def whole(axes: str) -> str:
    """Each axis for itself, and after them those of (B, H, L, D) that are missing."""
    apart = "".join(TOGETHER.get(axis, axis) for axis in axes if axis != "1")
    return apart + "".join(axis for axis in OP if axis not in apart)


def extents(axes: str, sizes: Mapping[str, int]) -> list[int]:
    """Of each axis."""
    return [prod(sizes[each] for each in TOGETHER.get(axis, axis) if each != "1") for axis in axes]


def laid(x: Any, axes: str) -> Any:
    """(B, H, L, D) in other axes, contiguous where it was so before, as callers of such a kernel have it."""
    sizes, order = dict(zip(OP, x.shape, strict=True)), whole(axes)
    return permuted(x, OP, order).reshape(extents(axes, sizes))


def restored(x: Any, axes: str, sizes: Mapping[str, int]) -> Any:
    """The same in (B, H, L, D)."""
    order = whole(axes)
    return permuted(x.reshape([sizes[axis] for axis in order]), order, OP)


def in_vectors(case: Case) -> Case:
    """The case with widths that are whole vectors in every dtype."""
    of_all = VECTOR // 2
    return case.sized(**{name: -(-getattr(case.sizes, name) // of_all) * of_all for name in ("d_k", "d_v")})


def pooled(pool: Any, axes: str) -> Any:
    """A pool of pages (P, S, H, D) in other axes."""
    if "N" in axes:
        return permuted(pool.reshape((-1, *pool.shape[2:])), "NHD", axes)
    if "X" in axes:
        vector = VECTOR // int(pool.dtype.itemsize)
        return permuted(pool.reshape((*pool.shape[:3], -1, vector)), "PSHCX", axes)
    return permuted(pool, "PSHD", axes)


def permuted(x: Any, axes: str, order: str) -> Any:
    """Axes in another order, contiguous where it was so before."""
    if axes == order:
        return x
    moved = [axes.index(axis) for axis in order]
    if not hasattr(x, "permute"):
        return x.transpose(moved)
    made = x.permute(moved)
    return made.contiguous() if x.is_contiguous() else made


OTHERWISE = {"BHLD": ("BLE", "BLHD"), "BLHD": ("BLE", "BHLD"), "HLD": ("LE", "LHD"), "LHD": ("LE", "HLD")}
"""Axes of outputs that are none of inputs with such axes."""


def in_axes(output: Any, own: str, axes: str, sizes: Mapping[str, int]) -> Any:
    """An output in other axes than its own, of these sizes."""
    apart = own.replace("E", "HD") if "E" not in axes else own
    return permuted(output.reshape([sizes[axis] for axis in apart]), apart, axes)


def stacked(arrays: Iterable[Any], axis: int) -> Any:
    """Along a new axis."""
    given = [*arrays]
    if hasattr(given[0], "new_zeros"):
        return sys.modules["torch"].stack(given, axis)
    return library_of(given[0]).stack(given, axis)


def together(arrays: Iterable[Any], axis: int) -> Any:
    """One behind the other, along an axis that they have."""
    given = [*arrays]
    if hasattr(given[0], "new_zeros"):
        return sys.modules["torch"].cat(given, axis)
    return library_of(given[0]).concatenate(given, axis)


def zeros(like: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of the kind and the type of an array."""
    return like.new_zeros(shape) if hasattr(like, "new_zeros") else library_of(like).zeros(shape, like.dtype)


def like(x: Any, other: Any) -> Any:
    """An array of NumPy as the kind of another one; floats in its dtype."""
    if not isinstance(x, np.ndarray) or isinstance(other, np.ndarray):
        return x.astype(other.dtype) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x
    if is_jax(other):
        made = sys.modules["jax"].numpy.asarray(x)
        return made.astype(other.dtype) if x.dtype.kind == "f" else made
    made = sys.modules["torch"].from_numpy(x).to(other.device)
    return made.to(other.dtype) if x.dtype.kind == "f" else made
