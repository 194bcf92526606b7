"""Layouts with channels first, or with the tokens in the axes of an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any

import torch

OF_SEQUENCES = 5
"""The layout of several sequences in each sample, of which there is one here."""
SPATIAL: Mapping[int, Callable[[torch.Tensor], torch.Tensor]] = {
    1: lambda x: x.transpose(1, 2).contiguous(),
    2: lambda x: x.transpose(1, 2).unsqueeze(-1).contiguous(),
    3: lambda x: x.unsqueeze(2),
    4: lambda x: x.unflatten(1, (isqrt(x.shape[1]), -1)),
    OF_SEQUENCES: lambda x: x.unsqueeze(1),
}
"""An input (B, L, E) in the layouts of `ModuleCall.spatial`."""


def channels_last(call: Callable[[], Any], already: bool) -> Any:
    """The answer with the output as (B, L, E); `already` states that it has its channels last."""
    answer = call()
    output = answer[0] if isinstance(answer, tuple) else answer
    if isinstance(output, torch.Tensor) and output.ndim > 2:
        output = output.flatten(1, -2) if already else output.flatten(2).transpose(1, 2)
    return (output, *answer[1:]) if isinstance(answer, tuple) else output
