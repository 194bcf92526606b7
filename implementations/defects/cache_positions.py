"""Mistakes of chapter 23: positions that are lost between chunks, in a ring, and in a call with a start."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.cached import Feed, Stream
from attention_conformance.implementations.builtin.stepwise import cache_steps as correct
from attention_conformance.implementations.builtin.stepwise.cache_steps import CacheSteps, Rows
from attention_conformance.implementations.builtin.stepwise.steps import Steps, add_alibi, add_window
from attention_conformance.implementations.defects.breaking import LEAK, breaks, breaks_cache
from attention_conformance.spec.features import Feature

START = {Feature.QUERY_START}
breaks_window = partial(breaks_cache, "cache.window", of_steps="add_window")
breaks_alibi = partial(breaks_cache, "cache.alibi", of_steps="add_alibi")


def standing(scores: Tensor) -> Tensor:
    """(1, Lq, Lk): so far key j is ahead of query i if both count from 0."""
    keys, queries = torch.arange(scores.shape[-1]), torch.arange(scores.shape[-2])
    return (keys - queries[:, None])[None]


def rotated_at(changed: Callable[[Tensor], Tensor]) -> CacheSteps:
    """A cache that rotates queries and keys by the angles of other positions."""
    return CacheSteps(
        rotate_query=lambda query, positions, base: correct.rotate_query(query, changed(positions), base),
        rotate_key=lambda key, positions, base: correct.rotate_key(key, changed(positions), base),
    )


@breaks_window("cache.query-start", holds=("cache.decode", "cache.chunked-prefill", "cache.alibi"))
def window_counted_in_the_chunk(scores: Tensor, ahead: Tensor, window: tuple[int, int]) -> Tensor:
    return add_window(scores, standing(scores), window)


@breaks_window(holds=("cache.decode", "cache.chunked-prefill", "cache.rotary"))
def window_forgotten_for_single_tokens(scores: Tensor, ahead: Tensor, window: tuple[int, int]) -> Tensor:
    return scores if scores.shape[-2] == 1 else add_window(scores, ahead, window)


@breaks_alibi("cache.ring-positions", holds=("cache.decode", "cache.rotary", "cache.chunked-prefill"))
def alibi_built_over_the_queries(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return scores if scores.shape[-2] == 1 else add_alibi(scores, slopes, ahead)


@breaks_alibi("cache.query-start-rows", holds=("cache.decode", "cache.rotary", "cache.window"))
def distances_counted_in_the_chunk(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return add_alibi(scores, slopes, standing(scores))


@breaks_cache("cache.rotary", step="rotate_query", holds=("cache.decode", "cache.alibi", "cache.window"))
def queries_rotated_from_the_beginning(query: Tensor, positions: Tensor, base: float) -> Tensor:
    return correct.rotate_query(query, positions - positions[:1], base)


@breaks_cache("cache.rotary", holds=("cache.decode", "cache.alibi", "cache.window"))
def positions_restarted_in_each_chunk(stream: Stream) -> Feed:
    return rotated_at(lambda positions: positions - positions[:1]).open(stream)


@breaks_cache("cache.rotary", holds=("cache.decode", "cache.alibi", "cache.window"))
def cached_keys_rotated_again(stream: Stream) -> Feed:
    base = stream.options.get("rotary_base")

    def rotated(store: Rows, new: Rows, after: Rows) -> Rows:
        cached_rows = store.written
        again = cached_rows.key if base is None else correct.rotate_key(cached_rows.key, cached_rows.positions, base)
        return correct.joined(Rows(again, cached_rows.value, cached_rows.positions), new)

    return CacheSteps(visible=rotated).open(stream)


@breaks_cache("cache.rotary", holds=("cache.decode", "cache.alibi", "cache.chunked-prefill"))
def angles_remembered_by_length(stream: Stream) -> Feed:
    known: dict[int, Tensor] = {}
    return rotated_at(lambda positions: known.setdefault(len(positions), positions)).open(stream)


@breaks_cache("cache.ring-positions", holds=("cache.ring", "cache.rotary"))
def offset_of_what_is_left(stream: Stream) -> Feed:
    def left(positions: Tensor) -> Tensor:
        return positions - max(0, int(positions[0]) - stream.room) if stream.ring else positions

    return rotated_at(left).open(stream)


@breaks_cache(
    "cache.ring-positions", "cache.ring", step="visible", holds=("cache.static", "cache.alibi", "cache.window")
)
def slots_taken_for_positions(store: Rows, new: Rows, after: Rows) -> Rows:
    cached_rows = store.written
    return correct.joined(Rows(cached_rows.key, cached_rows.value, cached_rows.positions.sort().values), new)


breaks_start = partial(breaks, claims=START)


@breaks_start("cache.query-start", "cache.query-start-rows", holds=("causal.square", "causal.alignment"))
def start_forgotten(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    options.pop("query_start", None)
    return Steps()(query, key, value, **options)


@breaks_start("cache.query-start", holds=("cache.query-start-rows", "causal.square"), severity=LEAK)
def start_of_zero_taken_for_none(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "query_start" in options:
        options["query_start"] = options["query_start"] or max(0, key.shape[-2] - query.shape[-2])
    return Steps()(query, key, value, **options)


@breaks_start("cache.query-start", holds=("cache.query-start-rows", "causal.square"), severity=LEAK)
def start_taken_from_the_end(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "query_start" in options:
        options["query_start"] = max(0, key.shape[-2] - query.shape[-2])
    return Steps()(query, key, value, **options)


@breaks("cache.query-start-rows", claims=START | {Feature.ROTARY}, holds=("cache.query-start", "causal.square"))
def start_for_the_triangle_only(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    base, start = options.get("rotary_base"), options.get("query_start")
    if base is not None and start:
        query = correct.rotate_query(query, torch.full((query.shape[-2],), -start), base)
    return Steps()(query, key, value, **options)
