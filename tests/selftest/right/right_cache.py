"""Right caches in unusual styles: pages, rolling, keys kept as they come, buffers read whole, tokens one by one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.cached import Feed, Run, Stream, cached, chunked
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.cache_steps import (
    CACHE_FEATURES,
    CacheSteps,
    Rows,
    joined,
    rotate_key,
    rotate_query,
    visible,
)
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps, mix
from attention_conformance.spec.conventions import Conventions, WindowCount
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array

PAGE, POOL = 2, 1000
FAR = 40
"""Added to every position, which moves no difference."""
INCLUDING = Conventions(window_count=WindowCount.INCLUDING)
BY_SAMPLE = {Feature.QUERY_START, Feature.QUERY_STARTS, Feature.VALID_LENS, Feature.WINDOW} | {
    *(Feature.ROTARY, Feature.ALIBI, Feature.RELATIVE_BIAS)
}
GROWING = CACHE_FEATURES - {Feature.STATIC_CACHE, Feature.RING_CACHE}


def rolled(store: Rows, new: Rows, stream: Stream) -> Rows:
    """A ring that is rolled, so that the newest token is always in its last slot."""
    both = joined(store, new)
    return both.select(torch.arange(len(both.positions))[-stream.room :])


def newest_first(store: Rows, new: Rows, after: Rows) -> Rows:
    """Keys in the opposite order, each with its position."""
    rows = visible(store, new, after)
    return rows.select(torch.arange(len(rows.positions)).flip(0))


def paged(stream: Stream) -> Feed:
    """Keys and values in pages of a pool, of which the last is taken first; a table says which page comes when."""
    pool: dict[int, tuple[Tensor, Tensor]] = {}
    table: list[int] = []

    def put(row: Rows, place: int) -> None:
        if place % PAGE == 0:
            table.append(POOL - len(table))
            key, value = (torch.full((*x.shape[:2], PAGE, x.shape[-1]), torch.nan) for x in (row.key, row.value))
            pool[table[-1]] = key.to(row.key.dtype), value.to(row.value.dtype)
        key, value = pool[table[place // PAGE]]
        key[:, :, place % PAGE], value[:, :, place % PAGE] = row.key[:, :, 0], row.value[:, :, 0]

    def everything(store: Rows, new: Rows, after: Rows) -> Rows:
        for number, place in enumerate(new.positions.tolist()):
            put(new.select(torch.tensor([number])), place)
        if not table:
            return new
        key, value = (torch.cat([pool[page][part] for page in table], 2) for part in range(2))
        length = int(new.positions[-1]) + 1
        return Rows(key[:, :, :length], value[:, :, :length], torch.arange(length))

    return CacheSteps(visible=everything).open(stream)


def buffer_read_whole(stream: Stream) -> Feed:
    """Unused room is masked as the future is, and its values are left out by selection."""

    def everything(store: Rows, new: Rows, after: Rows) -> Rows:
        if stream.ring or not stream.room:
            return visible(store, new, after)
        return Rows(after.key, after.value, after.positions.masked_fill(after.positions < 0, 10**6))

    def selected(weights: Tensor, value: Tensor) -> Tensor:
        unseen = (weights == 0).all(-2)[..., None]
        return mix(weights, value.masked_fill(unseen, 0.0))

    return CacheSteps(steps=Steps(mix=selected), visible=everything).open(stream)


def rotated_when_read(stream: Stream) -> Feed:
    """Keys are kept as they come, and all of them are rotated anew for each piece, by positions before 0."""
    base = stream.options.get("rotary_base")

    def rotated(store: Rows, new: Rows, after: Rows) -> Rows:
        rows = visible(store, new, after)
        if base is None:
            return rows
        return replace(rows, key=rotate_key(rows.key, rows.positions - FAR, base))

    return CacheSteps(
        rotate_query=lambda query, positions, base: rotate_query(query, positions - FAR, base),
        rotate_key=lambda key, positions, base: key,
        visible=rotated,
    ).open(stream)


def token_by_token(stream: Stream) -> Feed:
    """NumPy: each query by itself, its keys from a list, in float32 for half types."""
    kept: list[tuple[Array, Array]] = []
    options = stream.options
    left, right = options.get("window_size", (-1, -1))
    scale = options.get("scale", stream.d_k**-0.5)
    base, slopes = options.get("rotary_base"), options.get("alibi_slopes")

    def feed(query: Array, key: Array, value: Array) -> Array:
        dtype = np.dtype(np.float32) if query.dtype.itemsize < 4 else query.dtype
        first, groups = len(kept), query.shape[1] // max(1, key.shape[1])
        for j in range(key.shape[2]):
            row = _rotated(key[:, :, j].astype(dtype), first + j, base)
            kept.append((np.repeat(row, groups, 1), np.repeat(value[:, :, j].astype(dtype), groups, 1)))
        output = np.zeros((*query.shape[:-1], value.shape[-1]), dtype)
        for i in range(query.shape[2]):
            place = first + options.get("query_start", 0) + i
            seen = [j for j in range(len(kept)) if _visible(j - place, left, right, "is_causal" in options)]
            if seen:
                row = _rotated(query[:, :, i].astype(dtype), place, base)
                scores = np.stack([(row * kept[j][0]).sum(-1) * dtype.type(scale) for j in seen], -1)
                if slopes is not None:
                    scores = scores - slopes.astype(dtype)[:, None] * np.abs(np.array(seen) - place).astype(dtype)
                weights = np.exp(scores - scores.max(-1, keepdims=True))
                values = np.stack([kept[j][1] for j in seen], -2)
                output[:, :, i] = (weights[..., None] * values).sum(-2) / weights.sum(-1)[..., None]
        return output.astype(query.dtype)

    return feed


def _visible(ahead: int, left: int, right: int, causal: bool) -> bool:
    return not ((causal and ahead > 0) or (left >= 0 and -ahead > left) or (right >= 0 and ahead > right))


def _rotated(rows: Array, place: int, base: float | None) -> Array:
    if base is None:
        return rows
    half = rows.shape[-1] // 2
    angles = place * base ** (-np.arange(half) / half)
    cosines, sines = np.cos(angles).astype(rows.dtype), np.sin(angles).astype(rows.dtype)
    one, other = rows[..., :half], rows[..., half:]
    return np.concatenate([one * cosines - other * sines, one * sines + other * cosines], -1)


def sample_by_sample(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Where samples have starts, each by itself: with a start of its own, and with its own keys only."""
    starts, lengths = options.pop("query_starts", None), options.get("valid_lens")
    if starts is None:
        return Steps()(query, key, value, **options)
    outputs = []
    for b, start in enumerate(starts.tolist()):
        keys = key.shape[-2] if lengths is None else int(lengths[b].max())
        one = (query[b : b + 1], key[b : b + 1, :, :keys], value[b : b + 1, :, :keys])
        own = lengths[b : b + 1] if lengths is not None and lengths.ndim == 2 else None
        masks = {name: _of_sample(options[name], b, keys, axes) for name, axes in MASKS.items() if name in options}
        outputs.append(Steps()(*one, query_start=start, **{**options, **masks, "valid_lens": own}))
    return torch.cat(outputs)


MASKS = {"attn_mask": 4, "key_padding_mask": 2}
"""The axes with which they have one of samples."""


def _of_sample(mask: Tensor, sample: int, keys: int, axes: int) -> Tensor:
    """The mask of one sample and its own keys; one without an axis of samples, or with one of extent 1, is for all."""
    own = mask[sample : sample + 1] if mask.ndim == axes and len(mask) > 1 else mask
    return own if own.shape[-1] == 1 else own[..., :keys]


def counting_its_own(start: Callable[[Stream], Feed]) -> Callable[[Stream], Feed]:
    """The same under the other convention: a window of w is one of w - 1 in addition to the query's own position."""

    def started(stream: Stream) -> Feed:
        left, right = stream.options.get("window_size", (-1, -1))
        narrower = {"window_size": (left - 1, right)} if left > 0 else {}
        return start(replace(stream, options={**stream.options, **narrower}))

    return started


def _made(name: str, run: Run, features: frozenset[Feature], conventions: Conventions) -> Implementation:
    return Implementation(name, Claims(Scope.OP, features, conventions), run)


_STARTS: dict[str, tuple[Callable[[Stream], Feed], frozenset[Feature]]] = {
    "steps": (CacheSteps().open, CACHE_FEATURES),
    "rolled": (CacheSteps(write=rolled).open, CACHE_FEATURES),
    "newest-first": (CacheSteps(visible=newest_first).open, CACHE_FEATURES),
    "paged": (paged, GROWING | {Feature.STATIC_CACHE}),
    "buffer-read-whole": (buffer_read_whole, CACHE_FEATURES),
    "rotated-when-read": (rotated_when_read, CACHE_FEATURES),
}
RIGHT = (
    *(_made(name, cached(start), features, Conventions()) for name, (start, features) in _STARTS.items()),
    _made("counting-its-own", cached(counting_its_own(CacheSteps().open)), CACHE_FEATURES, INCLUDING),
    _made("token-by-token", cached(token_by_token, arrays=True), CACHE_FEATURES, Conventions()),
    _made("sample-by-sample", torch_op(sample_by_sample), OP_FEATURES | BY_SAMPLE, Conventions()),
    _made("concatenated-by-the-caller", chunked(torch_op(Steps())), GROWING | {Feature.GRADIENTS}, Conventions()),
)
