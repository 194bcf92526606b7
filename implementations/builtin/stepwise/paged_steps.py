"""Attention over pages in steps: right as it is, and wrong in one place if a step is replaced."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import accumulator, cap, softmax

NO_WINDOW = (-1, -1)


def count_pages(length: int, size: int) -> int:
    """The pages of a sample that are not empty."""
    return -(-length // size)


def length_of(lengths: Tensor, sample: int, size: int) -> int:
    """The keys of a sample."""
    return int(lengths[sample])


def pages_of(table: Tensor, sample: int, count: int) -> Tensor:
    """(count,): the numbers of its pages."""
    return table[sample, :count].long()


def gather(pool: Tensor, pages: Tensor) -> Tensor:
    """(pages, size, Hk, d) -> (count * size, Hk, d)."""
    return pool[pages].flatten(0, 1)


def held(rows: Tensor, length: int) -> Tensor:
    """Those tokens of the gathered ones that the sample has."""
    return rows[:length]


def repeat(rows: Tensor, heads: int) -> Tensor:
    """(L, Hk, d) -> (L, H, d): adjacent query heads share a key head."""
    return rows.repeat_interleave(heads // rows.shape[1], 1)


def first_query(length: int, queries: int, room: int) -> int:
    """The position of the first query: the last one stands at the last key. `room`: of tokens in the gathered pages."""
    return length - queries


def visible(query: Tensor, key: Tensor, is_causal: bool, window: tuple[int, int]) -> Tensor:
    """(Lq, Lk), True = may attend: by the positions of queries (Lq,) and keys (Lk,)."""
    ahead = key[None, :] - query[:, None]
    seen = ahead <= 0 if is_causal else torch.ones_like(ahead, dtype=torch.bool)
    left, right = window
    seen = seen & (ahead >= -left) if left >= 0 else seen
    return seen & (ahead <= right) if right >= 0 else seen


def mix(weights: Tensor, value: Tensor) -> Tensor:
    """(H, Lq, Lk), (H, Lk, d_v) -> (H, Lq, d_v)."""
    return weights @ value


@dataclass(frozen=True)
class PagedSteps:
    """Attention of samples whose keys and values lie in pages: gathered, and answered one after another."""

    length_of: Callable[[Tensor, int, int], int] = length_of
    count_pages: Callable[[int, int], int] = count_pages
    pages_of: Callable[[Tensor, int, int], Tensor] = pages_of
    gather: Callable[[Tensor, Tensor], Tensor] = gather
    gather_values: Callable[[Tensor, Tensor], Tensor] = gather
    held: Callable[[Tensor, int], Tensor] = held
    held_values: Callable[[Tensor, int], Tensor] = held
    repeat: Callable[[Tensor, int], Tensor] = repeat
    first_query: Callable[[int, int, int], int] = first_query
    visible: Callable[[Tensor, Tensor, bool, tuple[int, int]], Tensor] = visible
    softmax: Callable[[Tensor], Tensor] = softmax
    mix: Callable[[Tensor, Tensor], Tensor] = mix

    def __call__(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_table: Tensor | None,
        context_lens: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
        window_size: tuple[int, int] = NO_WINDOW,
        softcap: float | None = None,
        cache_batch_idx: Tensor | None = None,
    ) -> Tensor:
        """The answers to queries (B, Lq, H, d_k), which are the last of each sample's tokens; (B, Lq, H, d_v).

        Args:
            query: the queries.
            key_cache: (pages, page_size, Hk, d_k).
            value_cache: (pages, page_size, Hk, d_v).
            block_table: (B, pages of a sample), the numbers of its pages in the order of its keys; None: each sample
                has one.
            context_lens: (B,), how many keys each sample has, those of the queries included.
            is_causal: no query sees a later key.
            scale: multiplies the scores; None is 1 / sqrt(d_k).
            window_size: so far a query sees to the left and to the right; -1 is no limit.
            softcap: scores become softcap * tanh(scores / softcap).
            cache_batch_idx: (B,), the page of each sample where there is no table; None: the first sample has page 0.
        """
        if block_table is None:
            block_table = (torch.arange(len(query)) if cache_batch_idx is None else cache_batch_idx)[:, None]
        by, size = query.shape[-1] ** -0.5 if scale is None else scale, key_cache.shape[1]
        outputs = []
        for sample, rows in enumerate(query.to(accumulator(query.dtype))):
            length = self.length_of(context_lens, sample, size)
            pages = self.pages_of(block_table, sample, self.count_pages(length, size))
            key = self.held(self.gather(key_cache, pages), length)
            value = self.held_values(self.gather_values(value_cache, pages), length)
            key, value = (self.repeat(x, rows.shape[1]).to(rows.dtype).transpose(0, 1) for x in (key, value))
            scores = rows.transpose(0, 1) @ key.transpose(-1, -2) * by
            scores = scores if softcap is None else cap(scores, softcap)
            first = self.first_query(length, len(rows), len(pages) * size)
            places = first + torch.arange(len(rows)), torch.arange(key.shape[1])
            seen = self.visible(*places, is_causal, window_size)
            weights = self.softmax(scores.masked_fill(~seen, -torch.inf))
            outputs.append(self.mix(weights, value).transpose(0, 1))
        empty = query.new_zeros(0, *query.shape[1:3], value_cache.shape[-1])
        return torch.stack(outputs).to(query.dtype) if outputs else empty
