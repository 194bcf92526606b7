"""Mistakes of chapter 23: what is cached, in which order and at which positions, and which of it a chunk sees."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.cached import Feed, Stream
from attention_conformance.implementations.builtin.stepwise import cache_steps as correct
from attention_conformance.implementations.builtin.stepwise.cache_steps import CacheSteps, Rows
from attention_conformance.implementations.builtin.stepwise.step_options import CallOptions
from attention_conformance.implementations.builtin.stepwise.steps import (
    Steps,
    add_alibi,
    add_causal,
    add_triangle,
    add_window,
    repeat_kv,
)
from attention_conformance.implementations.defects.breaking import (
    LEAK,
    NAN,
    PRECISION,
    STATE,
    breaks,
    breaks_cache,
    omitting,
)
from attention_conformance.spec.features import Feature

_PROMPTS: dict[tuple[torch.Size, torch.Size, torch.dtype], Rows] = {}
breaks_triangle = partial(breaks_cache, of_steps="add_triangle")


@breaks_cache("cache.chunked-prefill", step="flags", holds=("cache.decode", "causal.square"), severity=LEAK)
def flag_dropped_with_a_cache(options: dict[str, Any], first: int, length: int) -> dict[str, Any]:
    return {name: option for name, option in options.items() if not first or name != "is_causal"}


@breaks_triangle("cache.chunked-prefill", "cache.query-start", holds=("cache.decode", "causal.square"))
def triangle_without_cached_keys(scores: Tensor, ahead: Tensor) -> Tensor:
    return scores if scores.shape[-2] == 1 else add_causal(scores)


@breaks_triangle("cache.decode", "cache.static", holds=("causal.square", "relations.causal-prefix"))
def triangle_over_a_single_query(scores: Tensor, ahead: Tensor) -> Tensor:
    return add_causal(scores) if scores.shape[-2] == 1 and scores.shape[-1] > 1 else add_triangle(scores, ahead)


@breaks_cache("cache.static", step="query_positions", holds=("cache.decode", "cache.chunked-prefill"), severity=LEAK)
def queries_at_the_end_of_the_buffer(first: int, length: int, room: int) -> Tensor:
    return max(first, room - length) + torch.arange(length)


@breaks_cache("cache.chunked-prefill", "cache.alibi", step="visible", holds=("cache.decode", "causal.square"))
def new_keys_before_cached_keys(store: Rows, new: Rows, after: Rows) -> Rows:
    rotated = correct.joined(new, store.written)
    return Rows(rotated.key, rotated.value, rotated.positions.sort().values)


@breaks_cache("cache.decode", step="visible", holds=("causal.square",))
def own_key_appended_too_late(store: Rows, new: Rows, after: Rows) -> Rows:
    alone = len(new.positions) == 1 and len(store.written.positions) > 0
    return store.written if alone else correct.visible(store, new, after)


@breaks_cache("cache.chunked-prefill", holds=("cache.decode", "causal.square"))
def several_tokens_taken_for_a_prompt(stream: Stream) -> Feed:
    def fresh(store: Rows, new: Rows) -> Rows:
        return store if len(new.positions) == 1 else store.select(store.positions < -1)

    return CacheSteps(
        write=lambda store, new, stream: correct.write(store if stream.room else fresh(store, new), new, stream),
        visible=lambda store, new, after: correct.visible(fresh(store, new), new, after),
    ).open(stream)


@breaks_cache("cache.decode", "cache.chunked-prefill", holds=("causal.square",))
def position_advanced_by_one_a_call(stream: Stream) -> Feed:
    calls = count()
    return CacheSteps(query_positions=lambda first, length, room: next(calls) + torch.arange(length)).open(stream)


@breaks_cache("cache.new-sequence", step="visible", holds=("effects.repeatable",), severity=STATE)
def prompt_found_by_its_length(store: Rows, new: Rows, after: Rows) -> Rows:
    if not len(new.positions) or int(new.positions[0]):
        return correct.visible(store, new, after)
    return _PROMPTS.setdefault((new.key.shape, new.value.shape, new.key.dtype), new)


@breaks_cache("cache.grouped", holds=("cache.decode", "cache.chunked-prefill"))
def groups_tiled_with_a_cache(stream: Stream) -> Feed:
    later = False

    def flags(options: dict[str, Any], first: int, length: int) -> dict[str, Any]:
        nonlocal later
        later = first > 0
        return options

    def repeated(rows: Tensor, num_heads: int) -> Tensor:
        return rows.repeat(1, num_heads // rows.shape[1], 1, 1) if later else repeat_kv(rows, num_heads)

    return CacheSteps(steps=Steps(repeat_kv=repeated), flags=flags).open(stream)


@breaks_cache("cache.static", holds=("cache.decode", "cache.chunked-prefill"))
def unused_buffer_attended(stream: Stream) -> Feed:
    def zeroed(stream: Stream) -> Rows:
        room = correct.empty_store(stream)
        return Rows(torch.zeros_like(room.key), torch.zeros_like(room.value), room.positions)

    def everything(store: Rows, new: Rows, after: Rows) -> Rows:
        everywhere = Rows(after.key, after.value, after.positions.clamp(min=0))
        return correct.visible(store, new, after) if stream.ring else everywhere

    return CacheSteps(empty_store=zeroed, visible=everything).open(stream)


@breaks_cache("cache.unwritten", holds=("cache.decode", "cache.static"), severity=NAN)
def unused_values_multiplied_by_zero(stream: Stream) -> Feed:
    def everything(store: Rows, new: Rows, after: Rows) -> Rows:
        far = after.positions.masked_fill(after.positions < 0, stream.room)
        return correct.visible(store, new, after) if stream.ring else Rows(after.key, after.value, far)

    return CacheSteps(visible=everything).open(stream)


@breaks_cache("cache.ring", step="visible", holds=("cache.decode", "cache.chunked-prefill", "cache.static"))
def ring_written_before_it_is_read(store: Rows, new: Rows, after: Rows) -> Rows:
    return after.written


@breaks_cache("cache.ring", step="write", holds=("cache.decode", "cache.static"))
def beginning_of_a_long_chunk_cached(store: Rows, new: Rows, stream: Stream) -> Rows:
    if not 0 < stream.room < len(new.positions):
        return correct.write(store, new, stream)
    return correct.write_slots(store, new.select(torch.arange(stream.room)), torch.arange(stream.room))


@breaks_cache("cache.ring", holds=("cache.decode", "cache.static"))
def oldest_key_dropped_too_early(stream: Stream) -> Feed:
    def seen(store: Rows, new: Rows, after: Rows) -> Rows:
        cached = store.written
        full = stream.ring and len(cached.positions) == stream.room
        oldest = int(new.positions[0]) - stream.room + 1
        return correct.joined(cached.select(cached.positions > oldest), new) if full else correct.joined(cached, new)

    return CacheSteps(visible=seen).open(stream)


@breaks_cache("cache.decode", "cache.chunked-prefill", step="write", holds=("causal.square",), severity=PRECISION)
def cached_in_bfloat16(store: Rows, new: Rows, stream: Stream) -> Rows:
    key, value = (rows.bfloat16().to(rows.dtype) for rows in (new.key, new.value))
    return correct.write(store, Rows(key, value, new.positions), stream)


@breaks_cache("cache.decode", step="visible", holds=("causal.square", "relations.batch"), severity=LEAK)
def first_sample_cached_for_all(store: Rows, new: Rows, after: Rows) -> Rows:
    cached = store.written
    key, value = (rows[:1].expand_as(rows) for rows in (cached.key, cached.value))
    return correct.joined(Rows(key, value, cached.positions), new)


@breaks_cache(
    "cache.decode", "cache.chunked-prefill", step="write", holds=("cache.static", "cache.ring", "cache.new-sequence")
)
def values_left_behind_when_storage_grows(store: Rows, new: Rows, stream: Stream) -> Rows:
    after, held = correct.write(store, new, stream), len(store.positions)
    if stream.room or _storage(held) == _storage(len(after.positions)):
        return after
    value = after.value.clone()
    value[:, :, :held] = 0.0
    return Rows(after.key, value, after.positions)


def _storage(length: int) -> int:
    """64 or a double of it."""
    return max(64, 1 << (length - 1).bit_length())


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


STARTS = START | {
    *(Feature.QUERY_STARTS, Feature.VALID_LENS, Feature.WINDOW, Feature.ROTARY, Feature.ALIBI, Feature.RELATIVE_BIAS)
}
EVERY_START = tuple(f"cache.query-starts{of}" for of in ("", "-lengths", "-window", "-positions"))
breaks_starts = partial(breaks, claims=STARTS, holds=("cache.query-start", "cache.query-start-rows", "causal.square"))


@breaks_starts(*EVERY_START, severity=LEAK)
def start_of_the_first_sample_for_all(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if (starts := options.get("query_starts")) is not None:
        options["query_starts"] = starts[:1].expand_as(starts)
    return Steps()(query, key, value, **options)


@breaks_starts(*EVERY_START, severity=LEAK)
def each_start_one_too_late(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if (starts := options.get("query_starts")) is not None:
        options["query_starts"] = starts + 1
    return Steps()(query, key, value, **options)


@breaks_starts(*EVERY_START, severity=LEAK)
def each_start_at_the_end_of_the_array(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if (starts := options.get("query_starts")) is not None:
        options["query_starts"] = torch.full_like(starts, max(0, key.shape[-2] - query.shape[-2]))
    return Steps()(query, key, value, **options)


@breaks_starts("cache.query-starts-lengths", severity=LEAK)
def lengths_forgotten_where_samples_have_starts(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("valid_lens", options, "query_starts"))


@breaks_starts("cache.query-starts", severity=LEAK)
def masks_forgotten_where_samples_have_starts(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    return Steps()(query, key, value, **omitting("attn_mask", options, "query_starts"))


@breaks_starts("cache.query-starts-window")
def window_from_the_start_of_the_first_sample(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    starts, window = options.get("query_starts"), options.get("window_size")
    if starts is None or window is None:
        return Steps()(query, key, value, **options)
    ahead = torch.arange(key.shape[-2]) - (starts[0] + torch.arange(query.shape[-2]))[None, :, None]
    steps = Steps(add_window=lambda scores, _, size: add_window(scores, ahead, size))
    return steps(query, key, value, **options)


@breaks_starts("cache.query-starts-positions", step="rotated_at")
def starts_for_the_triangle_only(of_query: Tensor, of_key: Tensor, call: CallOptions) -> tuple[Tensor, Tensor]:
    return of_query if call.query_starts is None else of_query - call.query_starts[:, None], of_key


@breaks_starts("cache.query-starts-positions", step="add_alibi")
def distances_of_the_first_sample_for_all(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return add_alibi(scores, slopes, ahead if (ahead == ahead[:1]).all() else ahead[:1].expand_as(ahead))
