"""Conditions: the closed list of what may be so about a call, alone and two at a time.

A mistake that shows under one condition alone is found only by a check whose calls fulfil it; see `score`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from attention_conformance.spec.cases import Layout, MaskKind, MaskShape, Padding, Pattern, Sharing, Sizes
from attention_conformance.spec.features import Packing, PositionIds, QkNorm, RotaryTables
from attention_conformance.spec.gates_and_splits import KeySplits, OutputGates
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.spec.stored_keys import Codes, ScaledBy
from attention_conformance.tests.measurements.reach.array_conditions import LAYOUTS, MAGNITUDES, any_view
from attention_conformance.tests.measurements.reach.condition import Call, Condition, Laid, both, compatible, when

POSITIONED = {"rotary_base": 100.0, "position_ids": PositionIds.ASCENDING}
TABLES = {"rotary_tables": RotaryTables.POSITIONS}
OPTIONS = (
    when("a boolean mask", 14, lambda c: c.mask is MaskKind.BOOL, mask=MaskKind.BOOL),
    when("a float mask", 20, lambda c: c.mask is MaskKind.FLOAT, mask=MaskKind.FLOAT),
    when("a mask with minus infinity", 20, lambda c: c.mask is MaskKind.INFINITE, mask=MaskKind.INFINITE),
    when("padding", 17, lambda c: c.problem.key_padding_mask is not None, padding=Padding.RIGHT),
    when("valid lengths", 9, lambda c: c.problem.valid_lens is not None, padding=Padding.LENGTHS),
    when("a causal flag", 29, lambda c: c.problem.causal, causal=True),
    when("a scale", 27, lambda c: c.problem.scale is not None, scale=0.3),
    when("a window", 9, lambda c: c.extension.windowed, window_left=2, window_right=1),
    when("a softcap", 6, lambda c: c.extension.softcap is not None, softcap=2.0),
    when("rotations", 4, lambda c: c.extension.rotates, rotary_base=100.0),
    when("a start of the queries", 8, lambda c: c.extension.query_start is not None, query_start=2),
    when("slopes", 7, lambda c: c.extension.alibi, alibi=True),
    when("a relative bias", 2, lambda c: c.extension.relative_bias > 0, relative_bias=2),
    when("a bias by bucket", 2, lambda c: c.extension.bucketed_bias > 0, bucketed_bias=6),
    when("sinks", 2, lambda c: c.extension.sinks, sinks=True),
    when("a key of zeros", 2, lambda c: c.extension.zero_attn, zero_attn=True),
    when("a learned key", 2, lambda c: c.extension.bias_kv, bias_kv=True),
    when("gates", 1, lambda c: c.extension.head_gates, head_gates=True),
    when("gates of the output", 2, lambda c: "gate_logits" in c.problem.extras, output_gates=OutputGates.CHANNEL),
    when("norms", 3, lambda c: c.extension.qk_norm is not QkNorm.NONE, qk_norm=QkNorm.HEAD),
    when("given positions", 4, lambda c: c.extension.position_ids is not PositionIds.NONE, **POSITIONED),
    when("given tables", 4, lambda c: c.extension.rotary_tables is not RotaryTables.NONE, **TABLES),
    when("a start of each sample", 8, lambda c: c.extension.query_starts, query_starts=True),
    when("splits of the keys", 2, lambda c: c.extension.key_splits is not KeySplits.NONE, key_splits=KeySplits.PAIR),
    when("pages", 5, lambda c: c.extension.page_size > 0, page_size=3),
    when("rows of a cache", 5, lambda c: c.extension.cache_rows > 0, cache_rows=2),
    when("codes", 5, lambda c: c.extension.codes is not Codes.NONE, codes=Codes.INT8),
    when("latents", 2, lambda c: c.extension.latent > 0, latent=6, decoupled=2),
    when("segments", 8, lambda c: c.extension.has_segments, packing=Packing.SEGMENTS),
    when("cumulative lengths", 8, lambda c: c.extension.has_lengths, packing=Packing.LENGTHS),
    when("pieces", 13, lambda c: bool(c.extension.chunks), chunks=(3, 1, 3), causal=True),
    when("grouped heads", 10, lambda c: _grouped(c.sizes), num_heads=6, num_kv_heads=2),
    when("gradients", 15, lambda c: c.gradients),
    when("one query", 7, lambda c: c.sizes.query_length == 1, query_length=1),
    when("one head", 11, lambda c: c.sizes.num_heads == 1, num_heads=1, num_kv_heads=0),
    when("one sample", 5, lambda c: c.sizes.batch == 1, batch=1),
    when("more than 64 keys", 13, lambda c: c.sizes.key_length > 64, key_length=131),
    when("more than 64 queries", 13, lambda c: c.sizes.query_length > 64, query_length=131),
    when("views", 17, lambda c: any_view(c.problem), layout=Layout.TRANSPOSED),
)
"""Each of them, and each two together."""


def _grouped(s: Sizes) -> bool:
    return 0 < s.num_kv_heads < s.num_heads


def _beyond(limits: Sequence[int], extents: Sequence[str], plural: str) -> Iterator[Condition]:
    for limit in limits:
        yield when(
            f"more than {limit:,} {plural}",
            13,
            lambda c, limit=limit: max(getattr(c.sizes, name) for name in extents) > limit,  # type: ignore[misc]
            **dict.fromkeys(extents, limit + 3),
        )


def _relation(words: str, reports: int, holds: Callable[[Sizes], bool], **extents: int) -> Condition:
    return when(words, reports, lambda c: holds(c.sizes), **extents)


SIZES = (
    *_beyond((16, 32, 128, 256, 512, 1024, 2048, 4096), ("key_length",), "keys"),
    *_beyond((16, 32, 128, 256, 1024), ("query_length",), "queries"),
    *_beyond((8, 16, 32, 64, 128, 256), ("d_k",), "components of a query"),
    *_beyond((8, 16, 32, 64, 128, 256), ("d_v",), "components of a value"),
    *_beyond((4, 8, 32, 256), ("batch",), "samples"),
    *_beyond((4, 8, 16, 32), ("num_heads",), "heads"),
    _relation("as many queries as keys", 7, lambda s: s.query_length == s.key_length, query_length=7, key_length=7),
    _relation("fewer queries than keys", 7, lambda s: s.query_length < s.key_length, query_length=4, key_length=9),
    _relation("more queries than keys", 7, lambda s: s.query_length > s.key_length, query_length=8, key_length=5),
    _relation("one key", 3, lambda s: s.key_length == 1, key_length=1),
    _relation("as many samples as heads", 5, lambda s: s.batch == s.num_heads > 1, batch=3, num_heads=3),
    _relation("an odd number of heads", 12, lambda s: s.num_heads % 2 == 1, num_heads=3, num_kv_heads=0),
    _relation("an even number of heads", 12, lambda s: s.num_heads % 2 == 0, num_heads=4, num_kv_heads=0),
    _relation("values as wide as keys", 8, lambda s: s.d_k == s.d_v, d_k=4, d_v=4),
    _relation("values wider than keys", 8, lambda s: s.d_v > s.d_k, d_k=4, d_v=6),
    _relation("values narrower than keys", 8, lambda s: s.d_v < s.d_k, d_k=6, d_v=4),
    _relation("a head width that is no multiple of 8", 3, lambda s: s.d_k % 8 != 0, d_k=12, d_v=12),
    _relation("a head width that is a multiple of 8", 3, lambda s: s.d_k % 8 == 0, d_k=16, d_v=16),
    _relation("an odd head width", 3, lambda s: s.d_k % 2 == 1, d_k=5, d_v=5),
    _relation("a head width of 1", 3, lambda s: s.d_k == 1, d_k=1, d_v=1),
    _relation("keys that fill blocks of 16", 13, lambda s: s.key_length % 16 == 0, key_length=32),
    _relation("keys that fill blocks of 64", 13, lambda s: s.key_length % 64 == 0, key_length=128),
    _relation("one key head for several", 10, lambda s: s.num_kv_heads == 1 < s.num_heads, num_heads=3, num_kv_heads=1),
    _relation(
        "groups of three heads or more", 10, lambda s: s.num_heads > 2 * s.num_kv_heads, num_heads=6, num_kv_heads=2
    ),
    _relation("more than 32 heads of samples", 3, lambda s: s.batch * s.num_heads > 32, batch=7, num_heads=6),
    _relation("more than 256 heads of samples", 3, lambda s: s.batch * s.num_heads > 256, batch=65, num_heads=4),
    _relation("one sample and one head", 5, lambda s: s.batch * s.num_heads == 1, batch=1, num_heads=1, num_kv_heads=0),
    _relation(
        "many queries over few keys", 3, lambda s: s.query_length > 64 > s.key_length, query_length=131, key_length=5
    ),
    _relation(
        "few queries over many keys",
        7,
        lambda s: s.query_length < 8 and s.key_length > 256,
        query_length=3,
        key_length=300,
    ),
)


HEAD_GATES = {"output_gates": OutputGates.HEAD}
SCALES_OF_HEADS = {"codes": Codes.INT8, "scaled_by": ScaledBy.HEAD}
SCALES_OF_TOKENS = {"codes": Codes.INT8, "scaled_by": ScaledBy.TOKEN}
EPSILON = {"qk_norm": QkNorm.HEAD, "norm_epsilon": 0.25}
PARTIAL = {"rotary_base": 100.0, "rotary_dim": 2}
NEAR_BUCKETS = {"bucketed_bias": 6, "max_distance": 5}
VALUES_OF_OPTIONS = (
    when("a scale of 0", 3, lambda c: c.problem.scale == 0.0, scale=0.0),
    when("a negative scale", 3, lambda c: (c.problem.scale or 0.0) < 0.0, scale=-0.7),
    when("a scale above 1", 3, lambda c: (c.problem.scale or 0.0) > 1.0, scale=1.7),
    when("a scale of 1", 3, lambda c: c.problem.scale == 1.0, scale=1.0),
    when(
        "a window to the left alone",
        9,
        lambda c: c.extension.window_left is not None and c.extension.window_right is None,
        window_left=2,
    ),
    when(
        "a window to the right alone",
        3,
        lambda c: c.extension.window_right is not None and c.extension.window_left is None,
        window_right=1,
    ),
    when("a window of 0 to the left", 3, lambda c: c.extension.window_left == 0, window_left=0),
    when(
        "a window wider than the keys",
        3,
        lambda c: (c.extension.window_left or 0) >= c.sizes.key_length,
        window_left=30,
    ),
    when("a start of 0", 3, lambda c: c.extension.query_start == 0, query_start=0),
    when("a start beyond the keys", 3, lambda c: (c.extension.query_start or 0) >= c.sizes.key_length, query_start=20),
    when("a start beyond 32,767", 3, lambda c: (c.extension.query_start or 0) > 2**15, query_start=2**16 + 7),
    when("a softcap above all scores", 3, lambda c: (c.extension.softcap or 0.0) > 20.0, softcap=30.0),
    when("a gate for each head of a query", 2, lambda c: c.extension.output_gates is OutputGates.HEAD, **HEAD_GATES),
    when("an empty split", 2, lambda c: c.extension.key_splits is KeySplits.EMPTY, key_splits=KeySplits.EMPTY),
    when("a page that holds all keys", 2, lambda c: c.extension.page_size >= c.sizes.key_length, page_size=16),
    when("pages that samples share", 2, lambda c: c.extension.shared_prefix, page_size=3, shared_prefix=True),
    when("codes with an exponent", 2, lambda c: c.extension.codes is Codes.E4M3, codes=Codes.E4M3),
    when("a scale of codes for each head", 2, lambda c: c.extension.scaled_by is ScaledBy.HEAD, **SCALES_OF_HEADS),
    when("a scale of codes for each token", 2, lambda c: c.extension.scaled_by is ScaledBy.TOKEN, **SCALES_OF_TOKENS),
    when("distances of buckets that end early", 2, lambda c: c.extension.max_distance < 10, **NEAR_BUCKETS),
    when("buckets in one direction", 2, lambda c: not c.extension.bidirectional, bucketed_bias=6, bidirectional=False),
    when("an epsilon of norms", 2, lambda c: c.extension.norm_epsilon is not None, **EPSILON),
    when("rotations of some components", 4, lambda c: c.extension.rotary_dim is not None, **PARTIAL),
    when("a rotation base of 10,000", 4, lambda c: c.extension.rotary_base == 10000.0, rotary_base=10000.0),
    when(
        "a document without keys",
        3,
        lambda c: c.extension.packing in (Packing.EMPTY_SEGMENT, Packing.EMPTY_DOCUMENT),
        packing=Packing.EMPTY_DOCUMENT,
    ),
    when("padding to the left", 5, lambda c: _left(c.problem.key_padding_mask), padding=Padding.LEFT),
    when(
        "valid lengths of each query", 2, lambda c: _of_each_query(c.problem.valid_lens), padding=Padding.QUERY_LENGTHS
    ),
    when("a probability of dropout", 13, lambda c: c.extension.dropout > 0.0),
    when("a dropout of 0", 3, lambda c: c.extension.has_dropout and c.extension.dropout == 0.0),
    when(
        "a cache with room",
        5,
        lambda c: c.extension.cache_length > c.sizes.key_length,
        chunks=(3, 1, 3),
        causal=True,
        cache_length=12,
    ),
    when(
        "a cache that wraps around",
        5,
        lambda c: 0 < c.extension.cache_length < c.sizes.key_length,
        chunks=(3, 1, 3),
        causal=True,
        cache_length=4,
        window_left=2,
    ),
)


def _of_each_query(lengths: Array | None) -> bool:
    return lengths is not None and lengths.ndim == 2


def _left(padding: Array | None) -> bool:
    return padding is not None and padding.size > 0 and bool((~padding[:, 0] & padding[:, -1]).any())


def _of_mask(words: str, holds: Callable[[Array, Call], bool], **changes: Any) -> Condition:
    def fulfilled(call: Call) -> bool:
        mask = call.problem.attn_mask
        return mask is not None and mask.size > 0 and holds(mask, call)

    return when(words, 5, fulfilled, **changes)


MASKS = (
    _of_mask("a mask of two axes", lambda m, c: m.ndim == 2, mask=MaskKind.BOOL, mask_shape=MaskShape.SHARED),
    _of_mask("a mask of three axes", lambda m, c: m.ndim == 3, mask=MaskKind.BOOL, mask_shape=MaskShape.HEADS_ONLY),
    _of_mask("a mask of the keys alone", lambda m, c: m.ndim == 1, mask=MaskKind.BOOL, mask_shape=MaskShape.KEYS_ONLY),
    _of_mask(
        "a mask that all samples share",
        lambda m, c: m.ndim == 4 and m.shape[0] == 1 < c.sizes.batch,
        mask=MaskKind.FLOAT,
        mask_shape=MaskShape.HEAD,
    ),
    _of_mask(
        "a mask that all heads share",
        lambda m, c: m.ndim == 4 and m.shape[1] == 1 < c.sizes.num_heads,
        mask=MaskKind.FLOAT,
        mask_shape=MaskShape.SAMPLE,
    ),
    _of_mask(
        "a mask that all queries share",
        lambda m, c: m.ndim == 4 and m.shape[2] == 1 < c.sizes.query_length,
        mask=MaskKind.FLOAT,
        mask_shape=MaskShape.KEYS,
    ),
    _of_mask(
        "a mask that all keys share",
        lambda m, c: m.ndim == 4 and m.shape[3] == 1 < c.sizes.key_length,
        mask=MaskKind.FLOAT,
        mask_shape=MaskShape.QUERIES,
    ),
    _of_mask(
        "a boolean mask of ones",
        lambda m, c: m.dtype.kind == "b" and bool(m.all()),
        mask=MaskKind.BOOL,
        pattern=Pattern.ALL,
    ),
    _of_mask(
        "a boolean mask with an empty row",
        lambda m, c: m.dtype.kind == "b" and not m.any(-1).all(),
        mask=MaskKind.BOOL,
        pattern=Pattern.EMPTY_ROW,
    ),
    _of_mask(
        "a boolean mask without its first key",
        lambda m, c: m.dtype.kind == "b" and m.shape[-1] > 1 and not m[..., 0].any(),
        mask=MaskKind.BOOL,
        pattern=Pattern.FIRST_TILE,
    ),
    _of_mask(
        "a float mask of large numbers",
        lambda m, c: m.dtype.kind != "b" and bool((np.abs(m[np.isfinite(m)]) > 20.0).any()),
        mask=MaskKind.FLOAT,
        mask_offset=-50.0,
    ),
)


def _needs(words: str, reports: int, holds: Callable[[Problem], bool], laid: Laid, **changes: Any) -> Condition:
    return Condition(words, lambda c: c.gradients and holds(c.problem), changes, laid, reports)


def _only(name: str, reports: int, **changes: Any) -> Condition:
    def needed(problem: Problem) -> Problem:
        return problem.but(needs=tuple(each for each in problem.needs if each == name))

    return _needs(f"a gradient of {name} alone", reports, lambda p: p.needs == (name,), needed, **changes)


def _ones(problem: Problem) -> Problem:
    return problem if problem.cotangent is None else problem.but(cotangent=np.ones_like(problem.cotangent))


def _sparse(problem: Problem) -> Problem:
    if problem.cotangent is None:
        return problem
    cotangent = np.array(problem.cotangent)
    cotangent[..., :-1, :] = 0
    return problem.but(cotangent=cotangent)


GRADIENTS = (
    *(_only(name, 4) for name in ("query", "key", "value")),
    _only("attn_mask", 2, mask=MaskKind.FLOAT),
    _needs("a gradient of the mask", 2, lambda p: "attn_mask" in p.needs, lambda p: p, mask=MaskKind.FLOAT),
    _needs("a cotangent of ones", 3, lambda p: p.cotangent is not None and bool((p.cotangent == 1).all()), _ones),
    _needs(
        "a cotangent of zeros but for a row",
        3,
        lambda p: p.cotangent is not None and p.cotangent.shape[-2] > 1 and not p.cotangent[..., :-1, :].any(),
        _sparse,
    ),
    Condition("no gradients", lambda c: not c.gradients, laid=Problem.forward_only, reports=3),
)

CALLS = (
    when("an earlier call of the same sizes and options", 21, lambda c: c.again),
    when("no earlier call of the same sizes and options", 1, lambda c: not c.again),
    when("one array as query, key and value", 3, lambda c: c.problem.sharing is Sharing.SELF),
    when("one array as key and value", 3, lambda c: c.problem.sharing is Sharing.KEY_VALUE),
    when("no recording of gradients", 3, lambda c: c.mode == "no-grad"),
    when("autocast", 9, lambda c: c.mode == "autocast"),
    when("vmap", 1, lambda c: c.mode == "vmap"),
)

ALONE = (*OPTIONS, *SIZES, *VALUES_OF_OPTIONS, *MASKS, *LAYOUTS, *MAGNITUDES, *GRADIENTS, *CALLS)


PAIRS = tuple(both(first, second) for first, second in combinations(OPTIONS, 2) if compatible(first, second))
"""Two options that can be given together."""
CONDITIONS = (*ALONE, *PAIRS)
