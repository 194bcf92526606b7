"""The ring as a function of whole sequences, which each process of a group calls together with the others.

`python -m attention_conformance.implementations.worker.ranks --processes 2 MODULE:RING` presents it in so many.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.inhouse.call_options import check, supported
from attention_conformance.implementations.builtin.inhouse.ring import SUPPORTED, ring_attention
from attention_conformance.spec.features import Feature, Scope


def attention(
    query: Tensor, key: Tensor, value: Tensor, *, exchanged: bool = False, **options: Any
) -> tuple[Tensor, Tensor]:
    """`ring_attention` of which each process has the whole inputs, and gets the whole output and log-sum-exp.

    Args:
        query: (B, H, Lq, d_k).
        key: (B, Hk, Lk, d_k).
        value: (B, Hk, Lk, d_v).
        exchanged: each process knows its own slices alone, and gets the lengths of others from them.
        options: those of `ring_attention`.
    """
    check(query.shape, key.shape, value.shape, supported(options, SUPPORTED))  # before any process waits for another
    lengths = None if exchanged else (_lengths(query.shape[2]), _lengths(key.shape[2]))
    own = _Shares.apply(query, key, value)  # type: ignore[no-untyped-call]
    joined: tuple[Tensor, Tensor] = _Joined.apply(  # type: ignore[no-untyped-call]
        query.shape[2], *ring_attention(*own, lengths=lengths, **options)
    )
    return joined


class _Shares(torch.autograd.Function):
    """The tokens of this process, of each input."""

    @staticmethod
    def forward(ctx: Any, *whole: Tensor) -> tuple[Tensor, ...]:
        ctx.lengths = [each.shape[2] for each in whole]
        return tuple(each.split(_lengths(each.shape[2]), 2)[dist.get_rank()].clone() for each in whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *own: Tensor) -> tuple[Tensor, ...]:
        return tuple(_join(each, length) for each, length in zip(own, ctx.lengths, strict=True))


class _Joined(torch.autograd.Function):
    """The answers of all processes, one after another along the tokens."""

    @staticmethod
    def forward(ctx: Any, length: int, *own: Tensor) -> tuple[Tensor, ...]:
        return tuple(_join(each, length) for each in own)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *whole: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(each.split(_lengths(each.shape[2]), 2)[dist.get_rank()] for each in whole)


def _join(own: Tensor, length: int) -> Tensor:
    parts = []
    for rank, tokens in enumerate(_lengths(length)):
        mine = rank == dist.get_rank()
        part = own.contiguous() if mine else own.new_empty(*own.shape[:2], tokens, *own.shape[3:])
        if part.numel():
            dist.broadcast(part, rank)
        parts.append(part)
    return torch.cat(parts, 2)


def _lengths(length: int) -> Sequence[int]:
    """So many consecutive tokens of a sequence for each process: some get one more where the length is no multiple."""
    count = dist.get_world_size()
    return [length * (rank + 1) // count - length * rank // count for rank in range(count)]


_INPUTS = {Feature.CORE, Feature.HEADS, Feature.VALUE_WIDTH, Feature.CROSS, Feature.KEY_VALUE, Feature.EMPTY_SIZES}
_OPTIONS = {Feature.SCALE, Feature.CAUSAL, Feature.GROUPED, Feature.WINDOW, Feature.SOFTCAP, Feature.ALIBI}
_OPTIONS |= {Feature.QUERY_START}
_RESULTS = {Feature.GRADIENTS, Feature.LOG_SUM_EXP, Feature.ALTERNATIVES}
RING = Implementation(
    "inhouse.ring",
    Claims(Scope.OP, frozenset(_INPUTS | _OPTIONS | _RESULTS)),
    torch_op(attention, extras=("log_sum_exp",)),
    "attention over sequences cut into slices, one a process",
    alternatives={"lengths exchanged": torch_op(partial(attention, exchanged=True), extras=("log_sum_exp",))},
)
"""It is no built-in, as it needs to be started in several processes."""
