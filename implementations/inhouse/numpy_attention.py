"""Attention in NumPy: online softmax over tiles of queries and keys, in float32, with the products of BLAS."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from implementations.inhouse.numpy_masking import SINGLE, Sight, Tile
from implementations.inhouse.options import Options, check

Array: TypeAlias = NDArray[Any]
State: TypeAlias = tuple[Array, Array, Array]
"""Of some queries: maximum and sum (B, H, rows, 1), and what is mixed so far (B, H, rows, d_v)."""


def attention(
    query: Array, key: Array, value: Array, *, tile: int = 128, need_weights: bool = False, **options: Any
) -> tuple[Array, ...]:
    """softmax(scale * Q K^T + ...) V for every sample and head, with scores and weights in float32.

    That is so for float64, too, where values are mixed in float64; half types are worked on in float32 throughout.

    Args:
        query: (B, H, Lq, d_k).
        key: (B, Hk, Lk, d_k).
        value: (B, Hk, Lk, d_v).
        tile: so many queries and keys at a time.
        need_weights: whether to return the weights too.
        options: see `Options`; there is no dropout.

    Returns:
        The output (B, H, Lq, d_v), the log-sum-exp of the scores (B, H, Lq), and the weights (B, H, Lq, Lk) if they
        are wanted, where Lk counts the key of zeros. A query that may see no key gets zeros, and minus infinity.

    Raises:
        ValueError: shapes or options that make no sense.
    """
    asked = Options[Array](**options)
    check(query.shape, key.shape, value.shape, asked)
    if asked.dropout_p:
        raise ValueError("there is no dropout in here")
    sight = Sight.of(asked, (*query.shape[:-1], key.shape[-2]))
    returned = query.dtype if query.dtype.itemsize > SINGLE.itemsize else SINGLE
    q, k, v = query.astype(SINGLE), key.astype(SINGLE), value.astype(returned)
    if asked.rotary_base is not None:
        q, k = (turned(x, at, asked.rotary_base) for x, at in ((q, sight.query), (k, sight.key)))
    with np.errstate(divide="ignore", invalid="ignore"):
        output, lse = _attended(sight, q, k, v, tile)
        weights = _weights(sight, q, k, lse, tile) if need_weights else None
    if asked.head_gates is not None:
        output *= asked.head_gates.astype(returned)[:, None, None]
    extras = (lse,) if weights is None else (lse, weights)
    return output.astype(query.dtype), *(x.astype(returned, copy=False) for x in extras)


def _attended(sight: Sight, query: Array, key: Array, value: Array, tile: int) -> tuple[Array, Array]:
    """The output, and the log-sum-exp."""
    output, lse = np.zeros((*query.shape[:-1], value.shape[-1]), value.dtype), np.empty(query.shape[:-1], SINGLE)
    for rows in _slices(query.shape[-2], tile):
        state = _start(sight.options, output[:, :, rows])
        for keys in _slices(key.shape[-2], tile):
            state = _extended(state, sight, query, key, value, (rows, keys))
        top, whole, mixed = state
        output[:, :, rows] = mixed / np.where(whole == 0, SINGLE.type(1), whole)
        lse[:, :, rows] = (np.log(whole) + _or_zero(top))[..., 0]
    return output, lse


def _start(asked: Options[Array], mixed: Array) -> State:
    """Before any key: those of the sinks, and of the key of zeros, whose score is 0."""
    logit = np.full(mixed.shape[1], 0.0 if asked.add_zero_attn else -np.inf, SINGLE)
    logit = logit if asked.sinks is None else np.logaddexp(logit, asked.sinks.astype(SINGLE))
    top = np.broadcast_to(logit[:, None, None], (*mixed.shape[:-1], 1))
    return top, (top > -np.inf).astype(SINGLE), mixed


def _extended(state: State, sight: Sight, query: Array, key: Array, value: Array, tile: Tile) -> State:
    """The state with the keys of one more tile."""
    rows, keys = tile
    seen = sight.seen(tile)
    if seen is not None and not seen.any():
        return state
    top, whole, mixed = state
    scores = _scores(sight, query[:, :, rows], key[:, :, keys], seen, tile)
    higher = np.maximum(top, scores.max(-1, keepdims=True))
    weights, kept = np.exp(scores - _or_zero(higher)), np.exp(top - _or_zero(higher))
    mixed = mixed * kept + product(weights, value[:, :, keys], seen)
    return higher, whole * kept + weights.sum(-1, keepdims=True), mixed


def _scores(sight: Sight, query: Array, key: Array, seen: Array | None, tile: Tile) -> Array:
    """(B, H, rows, keys), minus infinity where a query may not see a key."""
    asked = sight.options
    scores = _grouped(query, key.swapaxes(-1, -2))
    scores *= SINGLE.type(query.shape[-1] ** -0.5 if asked.scale is None else asked.scale)
    if asked.softcap is not None:
        limit = SINGLE.type(asked.softcap)
        scores = limit * np.tanh(scores / limit)
    added = sight.added(tile)
    scores = scores if added is None else scores + added
    return scores if seen is None else np.where(seen, scores, SINGLE.type(-np.inf))


def _weights(sight: Sight, query: Array, key: Array, lse: Array, tile: int) -> Array:
    """The weights of all tiles, made from the log-sum-exp."""
    found = np.zeros((*query.shape[:-1], key.shape[-2] + sight.options.add_zero_attn), SINGLE)
    base = _or_zero(lse)[..., None]
    for rows in _slices(query.shape[-2], tile):
        for keys in _slices(key.shape[-2], tile):
            seen = sight.seen((rows, keys))
            scores = _scores(sight, query[:, :, rows], key[:, :, keys], seen, (rows, keys))
            found[:, :, rows, keys] = np.exp(scores - base[:, :, rows])
    if sight.options.add_zero_attn:
        found[..., -1:] = np.exp(-base)
    return found


def product(weights: Array, rows: Array, seen: Array | None) -> Array:
    """(B, H, Lq, Lk), (B, Hk, Lk, d) -> (B, H, Lq, d), where nothing comes from what is not seen: 0 * NaN is NaN."""
    if seen is None or np.isfinite(rows).all():
        return _grouped(weights, rows)
    shared = np.repeat(rows, weights.shape[1] // rows.shape[1], axis=1)[:, :, None]
    return np.asarray((weights[..., None] * np.where(seen[..., None], shared, SINGLE.type(0))).sum(-2))


def _grouped(left: Array, right: Array) -> Array:
    """(B, H, m, n), (B, Hk, n, d) -> (B, H, m, d): the heads of a group make one product."""
    batch, heads, rows, inner = left.shape
    folded = left.reshape(batch, right.shape[1], heads // max(1, right.shape[1]) * rows, inner)
    return (folded @ right).reshape(batch, heads, rows, right.shape[-1])


def turned(rows: Array, places: Array, base: float) -> Array:
    """Rotary embedding of (B, H, L, d) at positions (B or 1, L), component c paired with c + d / 2."""
    half = rows.shape[-1] // 2
    angles = places[:, None, :, None] * base ** (-np.arange(half) / half)
    cosines, sines = np.cos(angles).astype(SINGLE), np.sin(angles).astype(SINGLE)
    first, second = rows[..., :half], rows[..., half:]
    return np.concatenate([first * cosines - second * sines, first * sines + second * cosines], -1)


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _or_zero(logs: Array) -> Array:
    return np.where(np.isinf(logs), SINGLE.type(0), logs)
