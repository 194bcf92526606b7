"""Attention for sequences that outgrow one device: each process holds a slice, and slices of keys go round.

Process r holds the r-th slice of queries, keys and values. In as many steps as there are processes it meets every slice
of keys and values, which its neighbour hands on to it, and merges the answers through the log-sum-exp. On the way
back the gradients of keys and values travel with them, and arrive home in the last step.

Torch's own `context_parallel` does not run on the CPU (2.13, gloo): scaled_dot_product_attention within it raises
"NotImplementedError: Operator aten._scaled_dot_product_flash_attention_for_cpu.default does not have a sharding
strategy registered".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from attention_conformance.implementations.builtin.inhouse.call_options import check, supported
from attention_conformance.implementations.builtin.inhouse.online import (
    TILE,
    Operands,
    Plan,
    attend,
    or_zero,
    retrace,
    wide,
)
from attention_conformance.implementations.builtin.inhouse.tile_masks import Masks

Lengths: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Of queries and of keys, by process."""


def lengths_of(group: dist.ProcessGroup | None, queries: int, keys: int) -> Lengths:
    """So many queries and keys as each process of the group holds; all of them call this together."""
    held = torch.tensor([queries, keys])
    counts = [torch.empty_like(held) for _ in range(dist.get_world_size(group))]
    dist.all_gather(counts, held, group)
    of_queries, of_keys = torch.stack(counts).T.tolist()
    return of_queries, of_keys


@dataclass(frozen=True)
class Ring:
    """The processes of a group in their order, and so many queries and keys as each of them holds."""

    group: dist.ProcessGroup | None
    rank: int
    queries: Sequence[int]
    keys: Sequence[int]

    @property
    def size(self) -> int:
        return len(self.keys)

    def source(self, step: int) -> int:
        """Whose keys this process holds after so many steps."""
        return (self.rank - step) % self.size

    def block(self, masks: Masks, step: int) -> Masks:
        """The masks for the queries of this process and the keys it holds after so many steps."""
        source = self.source(step)
        first = sum(self.queries[: self.rank]), sum(self.keys[:source])
        return replace(masks, keys=self.keys[source], first_query=masks.first_query + first[0], first_key=first[1])

    def hand_on(self, rows: list[Tensor], step: int) -> Callable[[], list[Tensor]]:
        """Starts to send what is held after so many steps to the next process.

        Returns:
            What waits for the same from the process before.
        """
        if self.size == 1:
            return lambda: rows
        shapes = [(*x.shape[:2], self.keys[self.source(step + 1)], x.shape[-1]) for x in rows]
        extents = [math.prod(shape) for shape in shapes]
        sent, received = torch.cat([x.flatten() for x in rows]), rows[0].new_empty(sum(extents))
        # Nothing to send is not sent: what is empty here is known to be empty there.
        works = [self._send(sent)] if sent.numel() else []
        works += [self._receive(received)] if received.numel() else []

        def arrived() -> list[Tensor]:
            for work in works:
                work.wait()
            return [part.view(shape) for part, shape in zip(received.split(extents), shapes, strict=True)]

        return arrived

    def _send(self, sent: Tensor) -> Any:
        return dist.isend(sent, group=self.group, group_dst=(self.rank + 1) % self.size)

    def _receive(self, received: Tensor) -> Any:
        return dist.irecv(received, group=self.group, group_src=(self.rank - 1) % self.size)


class RingAttention(torch.autograd.Function):
    """Output and log-sum-exp of the queries of this process."""

    @staticmethod
    def forward(ctx: Any, ring: Ring, plan: Plan, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Merges the partial answers of all slices of keys."""
        output, lse = query.new_zeros(*query.shape[:-1], value.shape[-1]), query.new_full(query.shape[:-1], -torch.inf)
        held = [key, value]
        for step in range(ring.size):
            arrived = ring.hand_on(held, step) if step + 1 < ring.size else None
            part = attend(replace(plan, masks=ring.block(plan.masks, step)), Operands(query, *held))
            output, lse = merged(output, lse, *part)
            held = arrived() if arrived else held
        ctx.ring, ctx.plan = ring, plan
        ctx.save_for_backward(query, key, value, output, lse)
        return output, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor, d_lse: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of keys and values are added to on their way round."""
        query, key, value, output, lse = ctx.saved_tensors
        ring: Ring = ctx.ring
        centre = (d_output * output).sum(-1, keepdim=True) - d_lse[..., None]
        d_query, held = torch.zeros_like(query), [key, value, torch.zeros_like(key), torch.zeros_like(value)]
        for step in range(ring.size):
            given = Operands(query, held[0], held[1])
            gradients = retrace(replace(ctx.plan, masks=ring.block(ctx.plan.masks, step)), given, lse, d_output, centre)
            d_query, held = d_query + gradients.query, [*held[:2], held[2] + gradients.key, held[3] + gradients.value]
            held = ring.hand_on(held if step + 1 < ring.size else held[2:], step)()
        return None, None, d_query, *held[-2:]


def merged(output: Tensor, lse: Tensor, other: Tensor, other_lse: Tensor) -> tuple[Tensor, Tensor]:
    """Two answers to the same queries over different keys as one; either may have seen none."""
    whole = torch.logaddexp(lse, other_lse)
    shares = [(part - or_zero(whole)).exp()[..., None] for part in (lse, other_lse)]
    return output * shares[0] + other * shares[1], whole


SUPPORTED = {"is_causal", "scale", "window_size", "softcap", "query_start", "alibi_slopes", "enable_gqa"}
"""The options of `ring_attention`."""


def ring_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    group: dist.ProcessGroup | None = None,
    lengths: Lengths | None = None,
    tile: int = TILE,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(scale * Q K^T + ...) V over sequences of which each process of a group holds consecutive tokens.

    All processes call it together, with slices that may differ in length. Positions count along the whole sequence.
    Half types are worked on in float32.

    Args:
        query: (B, H, Lq, d_k) of this process.
        key: (B, Hk, Lk, d_k) of this process.
        value: (B, Hk, Lk, d_v) of this process.
        group: the processes; None is all of them.
        lengths: so many queries, and so many keys, as each process holds; None exchanges them.
        tile: so many keys at a time.
        options: those of `SUPPORTED`; see `Options`.

    Returns:
        The output (B, H, Lq, d_v) and the log-sum-exp of the scores (B, H, Lq) for the queries of this process.

    Raises:
        ValueError: shapes or options that make no sense.
    """
    call = supported(options, SUPPORTED)
    check(query.shape, key.shape, value.shape, call)
    lengths = lengths or lengths_of(group, query.shape[-2], key.shape[-2])
    ring = Ring(group, dist.get_rank(group), *lengths)
    plan = Plan.of(Masks.of(call, query, key), query, tile)
    q, k, v = (x.to(wide(query.dtype)) for x in (query, key, value))
    answer: tuple[Tensor, Tensor] = RingAttention.apply(ring, plan, q, k, v)  # type: ignore[no-untyped-call]
    return answer[0].to(query.dtype), answer[1]
