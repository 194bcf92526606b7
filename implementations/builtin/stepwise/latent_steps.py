"""Latent attention in steps, keys and values expanded: right as it is, and wrong in one place if a step is replaced."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import accumulator, softmax


def expand(rows: Tensor, matrices: Tensor) -> Tensor:
    """(B, Lk, r), (H, d, r) -> (B, H, Lk, d)."""
    return rows[:, None] @ matrices.transpose(-1, -2)


def rotary_query(query: Tensor) -> Tensor:
    """(B, H, Lq, d_rope), as it is multiplied."""
    return query


def rotary_key(key: Tensor, heads: int) -> Tensor:
    """(B, Lk, d_rope) -> (B, H, Lk, d_rope): all heads have one."""
    return key[:, None].expand(-1, heads, -1, -1)


def join(expanded: Tensor, rotary: Tensor) -> Tensor:
    """Both parts of queries or keys in one, (B, H, L, d_nope + d_rope)."""
    return torch.cat([expanded, rotary], -1)


def factor(widths: tuple[int, int, int]) -> float:
    """What scores are multiplied by where no scale is given, of d_nope, d_rope and r."""
    return 1.0 / math.sqrt(widths[0] + widths[1])


def held(lengths: Tensor, keys: int) -> Tensor:
    """(B, Lk), True = a token of the sample."""
    return torch.arange(keys) < lengths[:, None]


def first_query(lengths: Tensor, queries: int) -> Tensor:
    """(B,): the position of the first query: the last one stands at the last token of its sample."""
    return lengths - queries


@dataclass(frozen=True)
class LatentSteps:
    """Attention over latents: keys and values of all heads are made of them, and multiplied."""

    expand_keys: Callable[[Tensor, Tensor], Tensor] = expand
    expand_values: Callable[[Tensor, Tensor], Tensor] = expand
    rotary_query: Callable[[Tensor], Tensor] = rotary_query
    rotary_key: Callable[[Tensor, int], Tensor] = rotary_key
    join_keys: Callable[[Tensor, Tensor], Tensor] = join
    factor: Callable[[tuple[int, int, int]], float] = factor
    held: Callable[[Tensor, int], Tensor] = held
    first_query: Callable[[Tensor, int], Tensor] = first_query

    def __call__(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        kv_c: Tensor,
        k_pe: Tensor,
        w_uk: Tensor,
        w_uv: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
        valid_lens: Tensor | None = None,
    ) -> Tensor:
        """(B, H, Lq, d_v).

        Args:
            q_nope: (B, H, Lq, d_nope).
            q_pe: (B, H, Lq, d_rope), the rotary part.
            kv_c: (B, Lk, r), the latents.
            k_pe: (B, Lk, d_rope), the rotary part of the keys of all heads.
            w_uk: (H, d_nope, r), by which keys are made of latents.
            w_uv: (H, d_v, r), by which values are made of them.
            is_causal: no query sees a later key; the last query stands at the last key.
            scale: multiplies the scores; None is 1 / sqrt(d_nope + d_rope).
            valid_lens: (B,), how many tokens each sample has; None: all of them.
        """
        wide, (heads, width, rank) = accumulator(q_nope.dtype), w_uk.shape
        rows, rotary = kv_c.to(wide), self.rotary_key(k_pe.to(wide), heads)
        key = self.join_keys(self.expand_keys(rows, w_uk.to(wide)), rotary)
        value = self.expand_values(rows, w_uv.to(wide))
        query = join(q_nope.to(wide), self.rotary_query(q_pe.to(wide)))
        by = self.factor((width, q_pe.shape[-1], rank)) if scale is None else scale
        (batch, keys), queries = kv_c.shape[:2], q_nope.shape[2]
        lengths = torch.full((batch,), keys) if valid_lens is None else valid_lens
        seen = self.held(lengths, keys)[:, None].expand(-1, queries, -1)
        if is_causal:
            at = self.first_query(lengths, queries)[:, None] + torch.arange(queries)
            seen = seen & (torch.arange(keys) <= at[..., None])
        scores = (query @ key.transpose(-1, -2) * by).masked_fill(~seen[:, None], -torch.inf)
        return (softmax(scores) @ value).to(q_nope.dtype)
