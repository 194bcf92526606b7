"""What is given to a module that takes its rotary embedding from outside: an object that rotates nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Unrotated(nn.Module):
    """Stands for a rotary embedding: each of its methods gives back the tensors of heads that it was given.

    One tensor is given back as it is, two, the query and the key, as a tuple. With `tables` it gives cosines 1 and
    sines 0 for the tokens of the first one, by which its caller rotates.
    """

    def __init__(self, tables: bool = False) -> None:
        super().__init__()
        self._tables = tables

    def forward(self, *given: Any, **named: Any) -> Any:
        """What the rotation by an angle of 0 gives."""
        heads = [x for x in (*given, *named.values()) if isinstance(x, torch.Tensor) and x.ndim > 2]
        if not heads:
            raise TypeError("it was given no tensor of heads")
        if self._tables:
            ones = heads[0].new_ones(heads[0].shape[-2:])
            return ones, torch.zeros_like(ones)
        return heads[0] if len(heads) == 1 else tuple(heads[:2])

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name.startswith("_") else self._method

    @property
    def _method(self) -> Callable[..., Any]:
        return self.forward


def rotating_nothing(turns: bool, tables: bool, length: int, head_dim: int) -> object:
    """A table of complex ones for so many tokens, or an object that rotates nothing."""
    return torch.ones(length, head_dim // 2, dtype=torch.complex64) if turns else Unrotated(tables)
