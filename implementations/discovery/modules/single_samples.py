"""Modules that take one sample at a time, (L, E): called with each of a batch, and their answers stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from attention_conformance.implementations.discovery.modules.bare import tapped


def each_sample_alone(
    module: nn.Module, inputs: list[torch.Tensor], options: Mapping[str, Any], batch: int, tap: str
) -> Any:
    """The answers to one sample after the other, stacked; an option is that of a sample where it has their axis.

    `tap`: the layer whose output is taken; empty for that of the module.
    """

    def of(each: Any, at: int) -> Any:
        return each[at] if isinstance(each, torch.Tensor) and each.ndim > 2 and len(each) == batch else each

    if not batch:
        raise ValueError("it takes one sample at a time, and there is none")
    if any(len(x) != batch for x in inputs):
        raise ValueError("its inputs have different numbers of samples")
    calls = [
        partial(module, *(x[at] for x in inputs), **{name: of(each, at) for name, each in options.items()})
        for at in range(batch)
    ]
    answers = [tapped(module, tap, call) if tap else call() for call in calls]
    if isinstance(answers[0], tuple):
        return tuple(map(_stacked, zip(*answers, strict=True)))
    return _stacked(answers)


def _stacked(parts: Sequence[Any]) -> Any:
    return torch.stack([*parts]) if isinstance(parts[0], torch.Tensor) else parts[0]
