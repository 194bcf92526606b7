"""Attention in NumPy: online softmax over tiles of queries and keys, in float32, with the products of BLAS."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.builtin.inhouse.call_options import EPSILON, Options, check
from attention_conformance.implementations.builtin.inhouse.numpy_masks import SINGLE, Sight, Tile

Array: TypeAlias = NDArray[Any]
ROWS, KEYS = 256, 512
"""A tile: more rows are better for the products, more keys for the maximum; few queries take more keys."""
SCORES = 2**18
"""So many scores at a time stay in the second cache while they are worked on: a mebibyte."""
HIGHEST = 48.0
"""Where no score can be further from 0 their exponentials fit float32 as they are, and no maximum is taken off."""
LARGEST = 1e12
"""Of the values: HIGHEST leaves so much room in float32 for sums of many."""


class State(NamedTuple):
    """Of some queries, written to as keys come in: maximum and sum (B, H, rows, 1), what is mixed (B, H, rows, d_v)."""

    top: Array
    whole: Array
    mixed: Array

    def part(self, samples: slice, heads: slice) -> State:
        """That of some samples and heads."""
        return State(*(x[samples, heads] for x in self))


def attention(
    query: Array, key: Array, value: Array, *, tile: int | None = None, need_weights: bool = False, **options: Any
) -> tuple[Array, ...]:
    """softmax(scale * Q K^T + ...) V for every sample and head, with scores and weights in float32.

    That is so for float64, too, where values are mixed in float64; half types are worked on in float32 throughout.

    Args:
        query: (B, H, Lq, d_k).
        key: (B, Hk, Lk, d_k).
        value: (B, Hk, Lk, d_v).
        tile: so many queries and keys at a time; None is as many as suit.
        need_weights: whether to return the weights too.
        options: see `Options`; there is no dropout.

    Returns:
        The output (B, H, Lq, d_v), the log-sum-exp of the scores (B, H, Lq), and the weights (B, H, Lq, Lk) if they
        are needed, where Lk counts the key of zeros. A query that may see no key gets zeros, and minus infinity.

    Raises:
        ValueError: shapes or options that make no sense.
    """
    call = Options[Array](**options)
    check(query.shape, key.shape, value.shape, call)
    if call.dropout_p:
        raise ValueError("there is no dropout in here")
    sight = Sight.of(call, (*query.shape[:-1], key.shape[-2]))
    returned = query.dtype if query.dtype.itemsize > SINGLE.itemsize else SINGLE
    q, k, v = (x.astype(t, copy=False) for x, t in ((query, SINGLE), (key, SINGLE), (value, returned)))
    if call.query_norm is not None and call.key_norm is not None:
        epsilon = EPSILON if call.norm_epsilon is None else call.norm_epsilon
        q, k = normalised(q, call.query_norm, epsilon), normalised(k, call.key_norm, epsilon)
    q, k = (rotated(x, there, call) for x, there in zip((q, k), sight.rotated_at, strict=True))
    q = q * SINGLE.type(q.shape[-1] ** -0.5 if call.scale is None else call.scale)
    rows = max(1, min(ROWS, q.shape[2]))
    sizes = (rows, ROWS * KEYS // rows) if tile is None else (tile, tile)
    with np.errstate(divide="ignore", invalid="ignore"):
        output, lse = _in_splits(sight, q, k, v, sizes)
        weights = _weights(sight, q, k, lse, sizes) if need_weights else None
    if call.head_gates is not None:
        output *= call.head_gates.astype(returned)[:, None, None]
    if call.gate_logits is not None:
        with np.errstate(over="ignore"):
            output /= 1 + np.exp(-call.gate_logits.astype(returned))
    extras = (lse,) if weights is None else (lse, weights)
    return output.astype(query.dtype), *(x.astype(returned, copy=False) for x in extras)


def _in_splits(sight: Sight, query: Array, key: Array, value: Array, sizes: tuple[int, int]) -> tuple[Array, Array]:
    """The output, and the log-sum-exp; those of each split, merged, where there are several."""
    call = sight.options
    if call.split_lengths is None:
        return _attended(sight, query, key, value, sizes, slice(0, key.shape[-2]))
    ends = np.cumsum(call.split_lengths)
    if call.split_lengths.min(initial=0) < 0 or ends[-1:].sum() != key.shape[-2]:
        raise ValueError(f"split_lengths must sum to {key.shape[-2]} keys: got {call.split_lengths.tolist()}")
    once = replace(sight, options=replace(call, sinks=None, add_zero_attn=False))
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    states = [_attended(once if n else sight, query, key, value, sizes, span) for n, span in enumerate(spans)]
    logs = np.stack([lse for _, lse in states])
    top = _or_zero(logs.max(0))
    shares = np.exp(logs - top)
    whole = shares.sum(0)
    mixed = sum(share[..., None] * output for share, (output, _) in zip(shares, states, strict=True))
    return mixed / np.where(whole == 0, SINGLE.type(1), whole)[..., None], np.log(whole) + top


def _attended(
    sight: Sight, query: Array, key: Array, value: Array, sizes: tuple[int, int], span: slice
) -> tuple[Array, Array]:
    """The output, and the log-sum-exp, of the keys in the span, the sinks and the key of zeros."""
    output, lse = np.zeros((*query.shape[:-1], value.shape[-1]), value.dtype), np.empty(query.shape[:-1], SINGLE)
    steady = _steady(sight.options, query, key, value)
    for rows in _slices(query.shape[-2], sizes[0]):
        state = _start(sight.options, output[:, :, rows], steady)
        for keys in _slices(span.stop, sizes[1], span.start):
            given = query[:, :, rows], key[:, :, keys], value[:, :, keys]
            _extend(state, sight, given, (rows, keys), steady)
        top, whole, mixed = state
        mixed /= np.where(whole == 0, SINGLE.type(1), whole)
        lse[:, :, rows] = (np.log(whole) + _or_zero(top))[..., 0]
    return output, lse


def _steady(call: Options[Array], query: Array, key: Array, value: Array) -> bool:
    """Whether it is known beforehand that scores are small enough to do without their maximum."""
    if query.shape[2] < query.shape[3]:
        return False  # to look at all keys and values would take longer
    added = (call.alibi_slopes, call.relative_bias, call.bucketed_bias, call.sinks)
    if any(x is not None for x in added) or (call.attn_mask is not None and call.attn_mask.dtype.kind != "b"):
        return False
    # No product of two vectors is larger than that of their lengths; NaN compares as False.
    longest = [np.sqrt(np.einsum("bhld,bhld->bhl", x, x).max(initial=0.0)) for x in (query, key)]
    small = longest[0] * longest[1] <= HIGHEST
    return bool(small and value.min(initial=0.0) >= -LARGEST and value.max(initial=0.0) <= LARGEST)


def _start(call: Options[Array], mixed: Array, steady: bool) -> State:
    """Before any key: those of the sinks, and of the key of zeros, whose score is 0."""
    logit = np.full(mixed.shape[1], 0.0 if call.add_zero_attn else -np.inf, SINGLE)
    logit = logit if call.sinks is None else np.logaddexp(logit, call.sinks.astype(SINGLE))
    top = np.empty((*mixed.shape[:-1], 1), SINGLE)
    top[...] = logit[:, None, None]
    whole = (top > -np.inf).astype(SINGLE)
    return State(np.zeros_like(top) if steady else top, whole, mixed)


def _extend(state: State, sight: Sight, given: tuple[Array, Array, Array], tile: Tile, steady: bool) -> None:
    """Takes in the keys of one more tile, for so many samples and heads at a time as the cache holds."""
    visible, added = sight.visible(tile), sight.added(tile)
    if visible is not None and not visible.any():
        return
    visible = None if visible is None or visible.all() else visible
    for samples, heads, keyed in _blocks(*(x.shape for x in given[:2])):
        query, (key, value) = given[0][samples, heads], (x[samples, keyed] for x in given[1:])
        visible_part, added_part = (None if x is None else _share(x, samples, heads) for x in (visible, added))
        scores = _scores(sight.options.softcap, query, key, visible_part, added_part)
        top, whole, mixed = state.part(samples, heads)
        if not steady:
            higher = np.maximum(top, scores.max(-1, keepdims=True))
            scores -= _or_zero(higher)
            rescale = np.exp(top - _or_zero(higher))
            whole *= rescale
            mixed *= rescale
            top[...] = higher
        np.exp(scores, out=scores)
        whole += scores.sum(-1, keepdims=True)
        mixed += product(scores, value, visible_part)


def _blocks(query: tuple[int, ...], key: tuple[int, ...]) -> Iterator[tuple[slice, slice, slice]]:
    """Samples, query heads and their key heads, with at most `SCORES` scores together, or those of one key head."""
    (batch, heads, rows, _), (_, keyed, keys, _) = query, key
    group = heads // max(1, keyed)
    fitting = max(1, SCORES // max(1, group * rows * keys))
    for samples in _slices(batch, max(1, fitting // max(1, keyed))):
        for some in _slices(keyed, fitting):
            yield samples, slice(some.start * group, some.stop * group), some


def _share(mask: Array, samples: slice, heads: slice) -> Array:
    """The part of a mask (B or 1, H or 1, rows, keys) for some samples and heads."""
    return mask[samples if mask.shape[0] > 1 else slice(None), heads if mask.shape[1] > 1 else slice(None)]


def _scores(softcap: float | None, query: Array, key: Array, visible: Array | None, added: Array | None) -> Array:
    """(B, H, rows, keys), minus infinity where a query may not see a key."""
    scores = _grouped(query, key.swapaxes(-1, -2))
    if softcap is not None:
        scores /= SINGLE.type(softcap)
        np.tanh(scores, out=scores)
        scores *= SINGLE.type(softcap)
    if added is not None:
        scores += added
    if visible is not None:
        np.copyto(scores, SINGLE.type(-np.inf), where=~visible)
    return scores


def _weights(sight: Sight, query: Array, key: Array, lse: Array, sizes: tuple[int, int]) -> Array:
    """The weights of all tiles, made from the log-sum-exp."""
    weights = np.zeros((*query.shape[:-1], key.shape[-2] + sight.options.add_zero_attn), SINGLE)
    base = _or_zero(lse)[..., None]
    for rows in _slices(query.shape[-2], sizes[0]):
        for keys in _slices(key.shape[-2], sizes[1]):
            visible, added = sight.visible((rows, keys)), sight.added((rows, keys))
            scores = _scores(sight.options.softcap, query[:, :, rows], key[:, :, keys], visible, added)
            weights[:, :, rows, keys] = np.exp(scores - base[:, :, rows])
    if sight.options.add_zero_attn:
        weights[..., -1:] = np.exp(-base)
    return weights


def product(weights: Array, rows: Array, visible: Array | None) -> Array:
    """(B, H, Lq, Lk), (B, Hk, Lk, d) -> (B, H, Lq, d), where nothing comes from what is hidden: 0 * NaN is NaN."""
    mixed = _grouped(weights, rows)
    if visible is None or np.isfinite(mixed).all():
        return mixed
    shared = np.repeat(rows, weights.shape[1] // rows.shape[1], axis=1)[:, :, None]
    return np.asarray((weights[..., None] * np.where(visible[..., None], shared, SINGLE.type(0))).sum(-2))


def _grouped(left: Array, right: Array) -> Array:
    """(B, H, m, n), (B, Hk, n, d) -> (B, H, m, d): the heads of a group make one product."""
    batch, heads, rows, inner = left.shape
    folded = left.reshape(batch, right.shape[1], heads // max(1, right.shape[1]) * rows, inner)
    return (folded @ right).reshape(batch, heads, rows, right.shape[-1])


def normalised(rows: Array, gain: Array, epsilon: float) -> Array:
    """(B, H, L, d) by the root of their mean square, over each head, or over all where the gain is as long."""
    _, heads, _, width = rows.shape
    together = gain.size != width
    over = (1, 3) if together else (3,)
    count = heads * width if together else width
    size = np.einsum("bhld,bhld->bl" if together else "bhld,bhld->bhl", rows, rows)
    size = np.sqrt(np.expand_dims(size, over) / SINGLE.type(max(count, 1)) + SINGLE.type(epsilon))
    factors = gain.astype(SINGLE).reshape(heads if together else 1, 1, width)
    return rows / np.where(size == 0, SINGLE.type(1), size) * factors


def rotated(rows: Array, places: Array, call: Options[Array]) -> Array:
    """The first r components of (B, H, L, d) rotated at positions (B or 1, L), component c with c + r / 2."""
    if call.rotary_cos is not None and call.rotary_sin is not None:
        tables = call.rotary_cos, call.rotary_sin
        cosines, sines = tables if tables[0].ndim == 3 else (table[places] for table in tables)
    elif call.rotary_base is not None:
        half = (call.rotary_dim or rows.shape[-1]) // 2
        angles = places[..., None] * call.rotary_base ** (-np.arange(half) / half)
        cosines, sines = np.cos(angles), np.sin(angles)
    else:
        return rows
    cosines, sines, half = cosines.astype(SINGLE)[:, None], sines.astype(SINGLE)[:, None], cosines.shape[-1]
    first, second, rest = np.split(rows, (half, 2 * half), -1)
    return np.concatenate([first * cosines - second * sines, first * sines + second * cosines, rest], -1)


def _slices(length: int, size: int, first: int = 0) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(first, length, size)]


def _or_zero(logs: Array) -> Array:
    return np.where(np.isinf(logs), SINGLE.type(0), logs)
