"""Layouts with channels first, with tokens in the axes of an image, or with heads apart; the output in an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any

import torch

from attention_conformance.implementations.discovery.probe import parts_of

OF_SEQUENCES, HEADS_FIRST, HEADS_LAST = 5, 6, 7
"""Layouts of several sequences in each sample, of which there is one, and of answers (B, H, L, d) and (B, L, H, d)."""
SURE = (0, OF_SEQUENCES, HEADS_FIRST, HEADS_LAST)
"""Layouts that an answer shows."""
CHANNELS_FIRST = (1, 2)
"""Layouts of inputs (B, E, ...)."""
SPATIAL: Mapping[int, Callable[[torch.Tensor], torch.Tensor]] = {
    1: lambda x: x.transpose(1, 2).contiguous(),
    2: lambda x: x.transpose(1, 2).unsqueeze(-1).contiguous(),
    3: lambda x: x.unsqueeze(2),
    4: lambda x: x.unflatten(1, (isqrt(x.shape[1]), -1)),
    OF_SEQUENCES: lambda x: x.unsqueeze(1),
    HEADS_FIRST: lambda x: x,
    HEADS_LAST: lambda x: x,
}
"""An input (B, L, E) in the layouts of `ModuleCall.spatial`."""


def by_view(x: torch.Tensor) -> torch.Tensor:
    """Tokens (B, L, E) of the same numbers, of which channels first, viewed as tokens, are those that were given."""
    batch, length, width = x.shape
    return x.reshape(batch, width, length).mT.contiguous()


def restored(call: Callable[[], Any], spatial: int, linear: bool) -> Any:
    """The answer with the output as (B, L, E), of a layout; `linear` states that it has its channels last."""
    answer = call()
    output = answer[0] if isinstance(answer, tuple) else answer
    if isinstance(output, torch.Tensor) and output.ndim > 2:
        output = _in_one(output, spatial, linear)
    return (output, *answer[1:]) if isinstance(answer, tuple) else output


def _in_one(output: torch.Tensor, spatial: int, linear: bool) -> torch.Tensor:
    if spatial == HEADS_FIRST:
        return output.transpose(1, 2).flatten(2)
    if spatial == HEADS_LAST:
        return output.flatten(2)
    return output.flatten(1, -2) if linear or spatial > 2 else output.flatten(2).transpose(1, 2)


def of_answer(shape: tuple[int, ...], batch: int, tokens: int, heads: int, width: int) -> int:
    """The layout that the shape of an answer to (B, L, E) shows; 0 where it shows the usual one, or none."""
    found: dict[tuple[int, ...], int] = {
        (batch, tokens, 1, width): OF_SEQUENCES,
        (batch, heads, tokens, width // heads): HEADS_FIRST,
        (batch, tokens, heads, width // heads): HEADS_LAST,
    }
    return found.get(shape, 0)


def batch_first(answer: Any) -> Any:
    """The answer with its output (L, B, E) as (B, L, E)."""
    if isinstance(answer, tuple):
        return (batch_first(answer[0]), *answer[1:])
    return answer.transpose(0, 1) if isinstance(answer, torch.Tensor) and answer.ndim > 1 else answer


def output_first(call: Callable[[], Any], part: int) -> Any:
    """The answer with this part of it, the output, before the others."""
    parts = parts_of(call())
    return (parts[part], *parts[:part], *parts[part + 1 :])


def alone_output(call: Callable[[], Any]) -> Any:
    """The answer, which is the output alone.

    Raises:
        ValueError: another tensor comes with it.
    """
    answer = call()
    if any(isinstance(part, torch.Tensor) for part in parts_of(answer)[1:]):
        raise ValueError("it returned weights that were not wanted")
    return answer
