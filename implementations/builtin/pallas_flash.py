"""Flash attention in Pallas, there and back: grouped heads, the causal flag, windows, a softcap, a first position.

It is interpreted where JAX has no accelerator. Tiles are small, so that short sequences have several and edges.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from attention_conformance.implementations.adapters.jax_programs import quick_options

TILE = 16
"""Queries and keys of a tile."""
LEAST = 16
"""The smallest width of a tile that a matrix unit takes."""
INFINITY = float("inf")
INTERPRETED = jax.default_backend() == "cpu"
compiled = partial(jax.jit, compiler_options=quick_options())


def product(left: Any, right: Any, axes: tuple[int, int]) -> Any:
    """Two matrices multiplied along an axis of each, with sums and products in float32."""
    contracted = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(left, right, contracted, jax.lax.Precision.HIGHEST, jnp.float32)


def capped(products: Any, cap: Any) -> Any:
    return jnp.where(cap > 0.0, cap * jnp.tanh(products / jnp.where(cap > 0.0, cap, 1.0)), products)


def visible(i: Any, j: Any, sizes: Any) -> Any:
    """Which keys j the queries i see; an extent below 0 has no end."""
    queries, keys, start, left, right = (sizes[place] for place in range(5))
    ahead = j[None, :] - (i[:, None] + start)
    seen = (i[:, None] < queries) & (j[None, :] < keys)
    return seen & ((left < 0) | (ahead >= -left)) & ((right < 0) | (ahead <= right))


def tiles(length: Any) -> Any:
    """How many tiles hold so many rows."""
    return (length + TILE - 1) // TILE


def places(tile: Any) -> Any:
    return tile * TILE + jax.lax.iota(jnp.int32, TILE)


def rows_of(ref: Any, tile: Any, member: Any = 0) -> Any:
    """A tile of rows of a head, in float32."""
    return ref[member, pl.ds(tile * TILE, TILE), :].astype(jnp.float32)


def numbers_of(ref: Any, tile: Any, member: Any = 0) -> Any:
    return ref[member, pl.ds(tile * TILE, TILE)]


def forward(sizes: Any, factors: Any, q: Any, k: Any, v: Any, o: Any, log: Any) -> None:
    """A tile of queries of one head: the online softmax over tiles of keys."""
    query, i = q[0].astype(jnp.float32), places(pl.program_id(1))
    scale, cap = factors[0], factors[1]

    def add(tile: Any, state: Any) -> Any:
        top, total, mixed = state
        products = product(query, rows_of(k, tile), (1, 1)) * scale
        scores = jnp.where(visible(i, places(tile), sizes), capped(products, cap), -INFINITY)
        higher = jnp.maximum(top, scores.max(1))
        safe = jnp.where(higher == -INFINITY, 0.0, higher)
        shrunk = jnp.exp(top - safe)
        weights = jnp.exp(scores - safe[:, None])
        total = total * shrunk + weights.sum(1)
        mixed = mixed * shrunk[:, None] + product(weights, rows_of(v, tile), (1, 0))
        return higher, total, mixed

    nothing = jnp.zeros(TILE, jnp.float32)
    state = nothing - INFINITY, nothing, jnp.zeros((TILE, v.shape[2]), jnp.float32)
    top, total, mixed = jax.lax.fori_loop(0, tiles(sizes[1]), add, state)
    empty = total == 0.0
    whole = jnp.where(empty, 1.0, total)
    o[0] = (mixed / whole[:, None]).astype(o.dtype)
    log[0] = jnp.where(empty, -INFINITY, top + jnp.log(whole))


def of_tile(rows: Any, seen: Any, scale: Any, cap: Any) -> Any:
    """The weights of a tile, and the gradient of its products before the scale."""
    query, key, value, upstream, logs, deltas = rows
    scores = capped(product(query, key, (1, 1)) * scale, cap)
    safe = jnp.where(logs == -INFINITY, 0.0, logs)
    weights = jnp.where(seen, jnp.exp(scores - safe[:, None]), 0.0)
    of_scores = weights * (product(upstream, value, (1, 1)) - deltas[:, None])
    slope = jnp.where(cap > 0.0, 1.0 - (scores / jnp.where(cap > 0.0, cap, 1.0)) ** 2, 1.0)
    return weights, of_scores * slope * scale


def backward_queries(sizes: Any, factors: Any, q: Any, k: Any, v: Any, do: Any, log: Any, delta: Any, dq: Any) -> None:
    """A tile of queries of one head, over tiles of keys."""
    i = places(pl.program_id(1))
    query, upstream = q[0].astype(jnp.float32), do[0].astype(jnp.float32)

    def add(tile: Any, gradient: Any) -> Any:
        key = rows_of(k, tile)
        rows = query, key, rows_of(v, tile), upstream, log[0], delta[0]
        _, of_scores = of_tile(rows, visible(i, places(tile), sizes), factors[0], factors[1])
        return gradient + product(of_scores, key, (1, 0))

    gradient = jax.lax.fori_loop(0, tiles(sizes[1]), add, jnp.zeros(query.shape, jnp.float32))
    dq[0] = gradient.astype(dq.dtype)


def backward_keys(
    sizes: Any, factors: Any, q: Any, k: Any, v: Any, do: Any, log: Any, delta: Any, dk: Any, dv: Any
) -> None:
    """A tile of keys of one key head, over its query heads and tiles of queries."""
    j = places(pl.program_id(1))
    key, value = k[0].astype(jnp.float32), v[0].astype(jnp.float32)
    number = tiles(sizes[0])

    def add(step: Any, gradients: Any) -> Any:
        member, tile = step // number, step % number
        query, upstream = rows_of(q, tile, member), rows_of(do, tile, member)
        rows = query, key, value, upstream, numbers_of(log, tile, member), numbers_of(delta, tile, member)
        weights, of_scores = of_tile(rows, visible(places(tile), j, sizes), factors[0], factors[1])
        return gradients[0] + product(of_scores, query, (0, 0)), gradients[1] + product(weights, upstream, (0, 0))

    zeros = jnp.zeros(key.shape, jnp.float32), jnp.zeros(value.shape, jnp.float32)
    of_key, of_value = jax.lax.fori_loop(0, q.shape[0] * number, add, zeros)
    dk[0], dv[0] = of_key.astype(dk.dtype), of_value.astype(dv.dtype)


def rounded(size: int, least: int) -> int:
    """A power of two, so that few shapes are compiled."""
    return max(least, 1 << (size - 1).bit_length())


@compiled
def laid(*arrays: Any) -> tuple[Any, ...]:
    """(B, H, L, d) -> (B * H, L, d) with zeros up to powers of two; heads that share a key head stay together."""
    shared = arrays[1].shape[0] * arrays[1].shape[1]

    def one(x: Any) -> Any:
        flat = x.reshape(-1, *x.shape[2:])
        shape = rounded(shared, 1) * (len(flat) // shared), rounded(x.shape[2], TILE), rounded(x.shape[3], LEAST)
        return jnp.pad(flat, [(0, wide - size) for wide, size in zip(shape, flat.shape, strict=True)])

    return tuple(map(one, arrays))


@partial(compiled, static_argnums=0)
def cut(shapes: tuple[tuple[int, ...], ...], *arrays: Any) -> tuple[Any, ...]:
    """Back to these shapes."""
    parts = []
    for shape, x in zip(shapes, arrays, strict=True):
        part = x[tuple(slice(size) for size in (shape[0] * shape[1], *shape[2:]))]
        parts.append(part.reshape(shape))
    return tuple(parts)


def tile_of(x: Any) -> pl.BlockSpec:
    """A tile of the rows of a head."""
    return pl.BlockSpec((1, TILE, *x.shape[2:]), lambda head, tile: (head, tile, *(0,) * (x.ndim - 2)))


def heads_of(x: Any, members: int = 1, group: int = 1) -> pl.BlockSpec:
    """All rows: of the head that a group of heads shares, or of the members of a group."""
    return pl.BlockSpec((members, *x.shape[1:]), lambda head, _: (head // group, *(0,) * (x.ndim - 1)))


def launched(kernel: Any, given: tuple[Any, ...], specs: tuple[Any, ...], made: tuple[Any, ...]) -> Any:
    """A kernel for each tile of rows of each head that it makes; all kernels read the two arrays of numbers."""
    numbers = [pl.BlockSpec(x.shape, lambda *_: (0,)) for x in given[:2]]
    return pl.pallas_call(
        kernel,
        grid=(made[0].shape[0], made[0].shape[1] // TILE),
        in_specs=[*numbers, *specs],
        out_specs=[tile_of(x) for x in made],
        out_shape=made,
        interpret=INTERPRETED,
    )(*given)


def like(x: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(x.shape, x.dtype)


@compiled
def forwards(sizes: Any, factors: Any, q: Any, k: Any, v: Any) -> Any:
    """(H, Lq, d_k), (Hk, Lk, d_k), (Hk, Lk, d_v) -> (H, Lq, d_v) and (H, Lq) in float32."""
    group = q.shape[0] // k.shape[0]
    made = (
        jax.ShapeDtypeStruct((*q.shape[:2], v.shape[2]), q.dtype),
        jax.ShapeDtypeStruct(q.shape[:2], jnp.float32),
    )
    specs = tile_of(q), heads_of(k, group=group), heads_of(v, group=group)
    return launched(forward, (sizes, factors, q, k, v), specs, made)


@compiled
def backwards(sizes: Any, factors: Any, q: Any, k: Any, v: Any, output: Any, log: Any, do: Any) -> Any:
    """The gradients of query, key and value, given the answer and the gradient of its output."""
    group = q.shape[0] // k.shape[0]
    delta = (do.astype(jnp.float32) * output.astype(jnp.float32)).sum(-1)
    given = sizes, factors, q, k, v, do, log, delta
    shared = heads_of(k, group=group), heads_of(v, group=group)
    by_queries = tile_of(q), *shared, tile_of(do), tile_of(log), tile_of(delta)
    by_keys = heads_of(q, group), tile_of(k), tile_of(v), *(heads_of(x, group) for x in (do, log, delta))
    of_query = launched(backward_queries, given, by_queries, (like(q),))
    return *of_query, *launched(backward_keys, given, by_keys, (like(k), like(v)))


@jax.custom_vjp
def flash(query: Any, key: Any, value: Any, sizes: Any, factors: Any) -> Any:
    return there(query, key, value, sizes, factors)[0]


def there(query: Any, key: Any, value: Any, sizes: Any, factors: Any) -> Any:
    """The answer, and what the way back needs of it."""
    answer = forwards(sizes, factors, *laid(query, key, value))
    shape = *query.shape[:3], value.shape[3]
    return cut((shape, shape[:3]), *answer), (sizes, factors, query, key, value, *answer)


def back(kept: Any, upstream: Any) -> Any:
    """The log-sum-exp is for merging parts, and has no gradient here."""
    sizes, factors, query, key, value, *answer = kept
    q, k, v, do = laid(query, key, value, upstream[0])
    gradients = backwards(sizes, factors, q, k, v, *answer, do)
    return *cut((query.shape, key.shape, value.shape), *gradients), None, None


flash.defvjp(there, back)


def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float | None = None,
    query_start: int | None = None,
    enable_gqa: bool = False,
) -> tuple[Any, Any]:
    """Output and log-sum-exp; options as scaled_dot_product_attention has them, windows as FlashAttention.

    Raises:
        ValueError: shapes do not fit together.
    """
    b, h, queries, d = query.shape
    fits = key.shape[0] == value.shape[0] == b and key.shape[-1] == d and key.shape[1:3] == value.shape[1:3]
    if not fits or (key.shape[1] != h and not (enable_gqa and key.shape[1] and h % key.shape[1] == 0)):
        raise ValueError(f"query, key and value do not fit together: {[x.shape for x in (query, key, value)]}")
    shape = (b, h, queries, value.shape[-1])
    if 0 in (b, h, queries, key.shape[2]):
        return jnp.zeros(shape, query.dtype), jnp.full(shape[:-1], -INFINITY, query.dtype)
    left, right = window_size
    sizes = queries, key.shape[2], query_start or 0, left, 0 if is_causal else right
    factors = d**-0.5 if scale is None else scale, softcap or 0.0
    output, log = flash(query, key, value, jnp.asarray(sizes, jnp.int32), jnp.asarray(factors, jnp.float32))
    return output, log.astype(query.dtype)
