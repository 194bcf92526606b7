"""Flash attention in Triton, there and back: grouped heads, the causal flag, windows, a softcap, a first position.

On a machine without a GPU it runs where TRITON_INTERPRET=1 is set. Tiles are small, because an interpreted tile costs
milliseconds whatever its size is, and every few tiles there is an edge.
"""

from threading import Lock
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 32
"""Queries and keys of a tile."""
LEAST = 16
"""The smallest width of a tile that a matrix unit takes."""
ONE_AT_A_TIME = Lock()
"""Triton's interpreter replaces functions of the language while it runs, which two threads cannot do at once."""


@triton.jit
def tanh(x):
    """Without cancellation near 0, where the first terms of its series are exact to a rounding."""
    s = x * x
    near = x * (1.0 + s * (-1.0 / 3.0 + s * (2.0 / 15.0 + s * (-17.0 / 315.0 + s * (62.0 / 2835.0)))))
    e = tl.exp(-2.0 * tl.abs(x))
    far = (1.0 - e) / (1.0 + e)
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0.0, -far, far))


@triton.jit
def visible(i, j, queries, keys, start, left, right, CAUSAL: tl.constexpr):
    """Which keys j the queries i see."""
    ahead = j[None, :] - (i[:, None] + start)
    seen = (i[:, None] < queries) & (j[None, :] < keys)
    if CAUSAL:
        seen = seen & (ahead <= 0)
    seen = seen & ((left < 0) | (ahead >= -left))
    return seen & ((right < 0) | (ahead <= right))


@triton.jit
def rows_of(pointer, at, length, width, TILE_WIDTH: tl.constexpr):
    """Rows of a matrix (length, width), in float32; zeros beyond its ends."""
    columns = tl.arange(0, TILE_WIDTH)
    inside = (at[:, None] < length) & (columns[None, :] < width)
    return tl.load(pointer + at[:, None] * width + columns[None, :], mask=inside, other=0.0).to(tl.float32)


@triton.jit
def put_rows(pointer, at, length, width, rows, TILE_WIDTH: tl.constexpr):
    columns = tl.arange(0, TILE_WIDTH)
    inside = (at[:, None] < length) & (columns[None, :] < width)
    tl.store(pointer + at[:, None] * width + columns[None, :], rows.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def capped(products, cap):
    if cap > 0.0:
        products = cap * tanh(products / cap)
    return products


@triton.jit
def forward(
    q, k, v, o, log, group, queries, keys, d_k, d_v, scale, cap, start, left, right,
    CAUSAL: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """A tile of queries of one head: the online softmax over tiles of keys."""
    head = tl.program_id(1)
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    k_head, v_head = k + head // group * keys * d_k, v + head // group * keys * d_v
    query = rows_of(q + head * queries * d_k, i, queries, d_k, WIDTH)
    top, total = tl.full([TILE], -float("inf"), tl.float32), tl.zeros([TILE], tl.float32)
    mixed = tl.zeros([TILE, VALUES], tl.float32)
    for first in range(0, keys, TILE):
        j = first + tl.arange(0, TILE)
        products = tl.dot(query, tl.trans(rows_of(k_head, j, keys, d_k, WIDTH)), input_precision="ieee") * scale
        seen = visible(i, j, queries, keys, start, left, right, CAUSAL)
        scores = tl.where(seen, capped(products, cap), -float("inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(higher == -float("inf"), 0.0, higher)
        shrunk = tl.exp(top - safe)
        weights = tl.exp(scores - safe[:, None])
        total = total * shrunk + tl.sum(weights, 1)
        mixed = mixed * shrunk[:, None] + tl.dot(weights, rows_of(v_head, j, keys, d_v, VALUES), input_precision="ieee")
        top = higher
    empty = total == 0.0
    mixed = mixed / tl.where(empty, 1.0, total)[:, None]
    put_rows(o + head * queries * d_v, i, queries, d_v, mixed, VALUES)
    logs = tl.where(empty, -float("inf"), tl.where(empty, 0.0, top) + tl.log(tl.where(empty, 1.0, total)))
    tl.store(log + head * queries + i, logs, mask=i < queries)


@triton.jit
def tile_of_gradients(
    query, key, value, upstream, logs, deltas, seen, scale, cap
):  # fmt: skip
    """The weights of a tile, and the gradient of its products before the scale."""
    scores = capped(tl.dot(query, tl.trans(key), input_precision="ieee") * scale, cap)
    safe = tl.where(logs == -float("inf"), 0.0, logs)
    weights = tl.where(seen, tl.exp(scores - safe[:, None]), 0.0)
    of_weights = tl.dot(upstream, tl.trans(value), input_precision="ieee")
    of_scores = weights * (of_weights - deltas[:, None])
    if cap > 0.0:
        of_scores = of_scores * (1.0 - (scores / cap) * (scores / cap))
    return weights, of_scores * scale


@triton.jit
def backward_queries(
    q, k, v, do, log, delta, dq, group, queries, keys, d_k, d_v, scale, cap, start, left, right,
    CAUSAL: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """A tile of queries of one head, over tiles of keys."""
    head = tl.program_id(1)
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    k_head, v_head = k + head // group * keys * d_k, v + head // group * keys * d_v
    query = rows_of(q + head * queries * d_k, i, queries, d_k, WIDTH)
    upstream = rows_of(do + head * queries * d_v, i, queries, d_v, VALUES)
    logs = tl.load(log + head * queries + i, mask=i < queries, other=0.0)
    deltas = tl.load(delta + head * queries + i, mask=i < queries, other=0.0)
    gradient = tl.zeros([TILE, WIDTH], tl.float32)
    for first in range(0, keys, TILE):
        j = first + tl.arange(0, TILE)
        key, value = rows_of(k_head, j, keys, d_k, WIDTH), rows_of(v_head, j, keys, d_v, VALUES)
        seen = visible(i, j, queries, keys, start, left, right, CAUSAL)
        _, of_scores = tile_of_gradients(query, key, value, upstream, logs, deltas, seen, scale, cap)
        gradient += tl.dot(of_scores, key, input_precision="ieee")
    put_rows(dq + head * queries * d_k, i, queries, d_k, gradient, WIDTH)


@triton.jit
def backward_keys(
    q, k, v, do, log, delta, dk, dv, group, queries, keys, d_k, d_v, scale, cap, start, left, right,
    CAUSAL: tl.constexpr, TILE: tl.constexpr, WIDTH: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """A tile of keys of one key head, over its query heads and tiles of queries."""
    of_group = tl.program_id(1)
    j = tl.program_id(0) * TILE + tl.arange(0, TILE)
    key = rows_of(k + of_group * keys * d_k, j, keys, d_k, WIDTH)
    value = rows_of(v + of_group * keys * d_v, j, keys, d_v, VALUES)
    of_key, of_value = tl.zeros([TILE, WIDTH], tl.float32), tl.zeros([TILE, VALUES], tl.float32)
    for member in range(group):
        head = of_group * group + member
        for first in range(0, queries, TILE):
            i = first + tl.arange(0, TILE)
            query = rows_of(q + head * queries * d_k, i, queries, d_k, WIDTH)
            upstream = rows_of(do + head * queries * d_v, i, queries, d_v, VALUES)
            logs = tl.load(log + head * queries + i, mask=i < queries, other=0.0)
            deltas = tl.load(delta + head * queries + i, mask=i < queries, other=0.0)
            seen = visible(i, j, queries, keys, start, left, right, CAUSAL)
            weights, of_scores = tile_of_gradients(query, key, value, upstream, logs, deltas, seen, scale, cap)
            of_value += tl.dot(tl.trans(weights), upstream, input_precision="ieee")
            of_key += tl.dot(tl.trans(of_scores), query, input_precision="ieee")
    put_rows(dk + of_group * keys * d_k, j, keys, d_k, of_key, WIDTH)
    put_rows(dv + of_group * keys * d_v, j, keys, d_v, of_value, VALUES)


class Flash(torch.autograd.Function):
    """(B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v) and (B, H, Lq) in float32."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, numbers: tuple[Any, ...], causal: bool) -> Any:
        q, k, v = (x.contiguous() for x in (query, key, value))
        batch, heads, queries, _ = q.shape
        output = q.new_empty(*q.shape[:3], v.shape[-1])
        log = q.new_empty(q.shape[:3], dtype=torch.float32)
        grid = (triton.cdiv(queries, TILE), batch * heads)
        if all(grid):
            with ONE_AT_A_TIME:
                forward[grid](q, k, v, output, log, *sizes(q, k, v), *numbers, causal, *tiles(q, v))
        ctx.save_for_backward(q, k, v, output, log)
        ctx.numbers, ctx.causal = numbers, causal
        ctx.mark_non_differentiable(log)
        return output, log.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        q, k, v, output, log = ctx.saved_tensors
        do = upstream[0].contiguous()
        delta = (do.float() * output.float()).sum(-1)
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        given, rest = (q, k, v, do, log, delta), (*sizes(q, k, v), *ctx.numbers, ctx.causal, *tiles(q, v))
        of_queries = (triton.cdiv(q.shape[2], TILE), q.shape[0] * q.shape[1])
        of_keys = (triton.cdiv(k.shape[2], TILE), k.shape[0] * k.shape[1])
        if all(of_queries) and all(of_keys):
            with ONE_AT_A_TIME:
                backward_queries[of_queries](*given, dq, *rest)
                backward_keys[of_keys](*given, dk, dv, *rest)
        return dq, dk, dv, None, None


def sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """Query heads of a key head, the lengths, and the widths."""
    return q.shape[1] // max(1, k.shape[1]), q.shape[2], k.shape[2], q.shape[3], v.shape[3]


def tiles(q: Tensor, v: Tensor) -> tuple[int, int, int]:
    """The extents of tiles: of both lengths, and of the widths."""
    return TILE, *(max(LEAST, triton.next_power_of_2(x.shape[-1])) for x in (q, v))


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float | None = None,
    query_start: int | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp; options as scaled_dot_product_attention has them, windows as FlashAttention.

    Raises:
        ValueError: shapes do not fit together.
    """
    b, h, _, d = query.shape
    fits = key.shape[0] == value.shape[0] == b and key.shape[-1] == d and key.shape[1:3] == value.shape[1:3]
    if not fits or (key.shape[1] != h and not (enable_gqa and key.shape[1] and h % key.shape[1] == 0)):
        raise ValueError(f"query, key and value do not fit together: {[tuple(x.shape) for x in (query, key, value)]}")
    by = d**-0.5 if scale is None else scale
    numbers = (by, softcap or 0.0, query_start or 0, *window_size)
    output, log = Flash.apply(query, key, value, numbers, is_causal)
    return output, log.to(query.dtype)
