"""Drawn arrays: tensors of random numbers that a module keeps as plain attributes, as parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn


def with_drawn(build: Callable[[], nn.Module]) -> nn.Module:
    """What is built, with parameters in place of tensors that are others each time: they can be filled, and held.

    A table that is computed, such as one of sines, is the same each time, and is left as it is.
    """
    module = build()
    found = list(_plain(module))
    if not found:
        return module
    again = build()
    for path, name, array in found:
        other = getattr(again.get_submodule(path), name, None)
        if isinstance(other, torch.Tensor) and other.shape == array.shape and _are_drawn(array, other):
            part = module.get_submodule(path)
            delattr(part, name)
            part.register_parameter(name, nn.Parameter(array.detach().clone()))
    return module


def _are_drawn(array: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both have random numbers, all different: what is not initialised holds zeros, or anything."""
    usual = all(bool(each.isfinite().all()) and bool((each != 0).all()) for each in (array, other))
    return usual and not array.requires_grad and bool((array != other).all())


def _plain(module: nn.Module) -> Iterator[tuple[str, str, torch.Tensor]]:
    """The path of its owner, the name and the tensor of each that is neither a parameter nor a buffer."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim > 1:
                yield path, name, value
