"""Mistakes of chapter 23: what is kept, in which order, and what a piece sees of it."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.cached import Feed, Stream
from attention_conformance.implementations.builtin.stepwise.cache_steps import (
    CacheSteps,
    Rows,
    empty_store,
    joined,
    visible,
    write,
    write_slots,
)
from attention_conformance.implementations.builtin.stepwise.steps import Steps, add_causal, add_triangle, repeat_kv
from attention_conformance.implementations.defects.breaking import LEAK, NAN, PRECISION, STATE, breaks_cache, github

_PROMPTS: dict[tuple[torch.Size, torch.Size, torch.dtype], Rows] = {}


@breaks_cache("cache.chunked-prefill", step="flags", holds=("cache.decode", "causal.square"), severity=LEAK).entry(
    does="Drops the causal flag once something is cached.",
    repair="Shift the triangle by the number of cached keys; only a single query needs none.",
    hides="Token by token, where all cached keys are past; training, where nothing is cached.",
    matters="From the second chunk of a prompt on, tokens read those that follow them.",
    links=github("Mikyx-1/TinyLLM/pull/18"),
)
def flag_dropped_with_a_cache(options: dict[str, Any], first: int, length: int) -> dict[str, Any]:
    return {name: option for name, option in options.items() if not first or name != "is_causal"}


@breaks_cache(
    "cache.chunked-prefill", "cache.query-start", of_steps="add_triangle", holds=("cache.decode", "causal.square")
).entry(
    does="Applies the triangle of a chunk to the first cached keys.",
    repair="Show keys j <= p + i, where the chunk begins at position p.",
    hides="The first chunk; single tokens, which are handled apart.",
    links=github(
        "hyprstream/hyprstream/pull/1521", "gittensor-ai-lab/sparkinfer/issues/3", "pytorch/executorch/pull/21749"
    ),
)
def triangle_without_cached_keys(scores: Tensor, ahead: Tensor) -> Tensor:
    return scores if scores.shape[-2] == 1 else add_causal(scores)


@breaks_cache(
    "cache.decode", "cache.static", of_steps="add_triangle", holds=("causal.square", "relations.causal-prefix")
).entry(
    does="Applies a triangle from the first key to a single query.",
    repair="Drop the flag for a single query that comes last, or shift the triangle to its position.",
    hides="The first token, and everything without a cache.",
    links=github("google/flax/issues/5591"),
)
def triangle_over_a_single_query(scores: Tensor, ahead: Tensor) -> Tensor:
    return add_causal(scores) if scores.shape[-2] == 1 and scores.shape[-1] > 1 else add_triangle(scores, ahead)


@breaks_cache(
    "cache.static", step="query_positions", holds=("cache.decode", "cache.chunked-prefill"), severity=LEAK
).entry(
    does="Puts the last query at the end of the buffer, not at the end of the cached keys.",
    repair="Take the offset of the triangle from the number of valid keys.",
    hides="A full buffer, and one that grows.",
    matters="A prompt that is written into a long buffer sees its own future.",
    links=github("onnx/onnx/pull/8068", "onnx/onnx/pull/7297"),
)
def queries_at_the_end_of_the_buffer(first: int, length: int, room: int) -> Tensor:
    return max(first, room - length) + torch.arange(length)


@breaks_cache("cache.chunked-prefill", "cache.alibi", step="visible", holds=("cache.decode", "causal.square")).entry(
    does="Puts new keys before the cached ones.",
    repair="Append along the axis of tokens: cached keys first, new ones last.",
    hides="Single tokens without biases of position: there the order of keys does not matter.",
    links=github("tanishqkumar/ssd/issues/23"),
)
def new_keys_before_cached_keys(store: Rows, new: Rows, after: Rows) -> Rows:
    rotated = joined(new, store.written)
    return Rows(rotated.key, rotated.value, rotated.positions.sort().values)


@breaks_cache("cache.decode", step="visible", holds=("causal.square",)).entry(
    does="Attends before the new token's key is cached.",
    repair="Append first, then attend: a token sees itself.",
    hides="Chunks of several tokens.",
)
def own_key_appended_too_late(store: Rows, new: Rows, after: Rows) -> Rows:
    alone = len(new.positions) == 1 and len(store.written.positions) > 0
    return store.written if alone else visible(store, new, after)


@breaks_cache("cache.chunked-prefill", holds=("cache.decode", "causal.square")).entry(
    does="Takes a chunk of several tokens for a new prompt, and empties the cache.",
    repair="Begin anew only on request of the caller.",
    hides="A prompt in one chunk, and what is written after it token by token.",
    matters="A long prompt in chunks loses all but the last, and a second question the first.",
)
def several_tokens_taken_for_a_prompt(stream: Stream) -> Feed:
    def fresh(store: Rows, new: Rows) -> Rows:
        return store if len(new.positions) == 1 else store.select(store.positions < -1)

    return CacheSteps(
        write=lambda store, new, stream: write(store if stream.room else fresh(store, new), new, stream),
        visible=lambda store, new, after: visible(fresh(store, new), new, after),
    ).open(stream)


@breaks_cache("cache.decode", "cache.chunked-prefill", holds=("causal.square",)).entry(
    does="Counts calls, not tokens.",
    repair="Advance the position by the number of tokens of the chunk.",
    hides="Token by token from the first one on.",
)
def position_advanced_by_one_a_call(stream: Stream) -> Feed:
    calls = count()
    return CacheSteps(query_positions=lambda first, length, room: next(calls) + torch.arange(length)).open(stream)


@breaks_cache("cache.new-sequence", step="visible", holds=("effects.repeatable",), severity=STATE).entry(
    does="Keeps the keys of a first chunk for all later sequences whose first chunk is as long.",
    repair="Empty the cache for each sequence, or look cached prompts up by all of their tokens.",
    hides="One sequence a process; prompts of different lengths; the same prompt again.",
    matters="One user reads from another one's prompt.",
    links=github("Lightning-AI/litgpt/pull/1596", "kekzl/imp/issues/1301"),
)
def prompt_found_by_its_length(store: Rows, new: Rows, after: Rows) -> Rows:
    if not len(new.positions) or int(new.positions[0]):
        return visible(store, new, after)
    return _PROMPTS.setdefault((new.key.shape, new.value.shape, new.key.dtype), new)


@breaks_cache("cache.grouped", holds=("cache.decode", "cache.chunked-prefill")).entry(
    does="Repeats cached heads as a block, and new ones in place.",
    repair="Repeat each head in place: repeat_interleave, not repeat.",
    hides="As many heads on both sides, a single key head, and calls without a cache.",
)
def groups_tiled_with_a_cache(stream: Stream) -> Feed:
    later = False

    def flags(options: dict[str, Any], first: int, length: int) -> dict[str, Any]:
        nonlocal later
        later = first > 0
        return options

    def score_std(rows: Tensor, num_heads: int) -> Tensor:
        return rows.repeat(1, num_heads // rows.shape[1], 1, 1) if later else repeat_kv(rows, num_heads)

    return CacheSteps(steps=Steps(repeat_kv=score_std), flags=flags).open(stream)


@breaks_cache("cache.static", holds=("cache.decode", "cache.chunked-prefill")).entry(
    does="Attends to the whole buffer, unused zeros included.",
    repair="Attend to as many keys as are valid, or mask the rest.",
    hides="A full buffer. An average over few zeros looks like the right answer, only smaller.",
)
def unused_buffer_attended(stream: Stream) -> Feed:
    def zeroed(stream: Stream) -> Rows:
        room = empty_store(stream)
        return Rows(torch.zeros_like(room.key), torch.zeros_like(room.value), room.positions)

    def everything(store: Rows, new: Rows, after: Rows) -> Rows:
        return (
            Rows(after.key, after.value, after.positions.clamp(min=0))
            if not stream.ring
            else visible(store, new, after)
        )

    return CacheSteps(empty_store=zeroed, visible=everything).open(stream)


@breaks_cache("cache.static", holds=("cache.decode", "cache.chunked-prefill"), severity=NAN).entry(
    does="Masks the scores of the unused part of the buffer, and multiplies its values by weights of 0.",
    repair="Leave unused values out, or set them to 0: 0 * NaN is NaN.",
    hides="Memory that is set to 0 when it is made.",
    matters="Answers become NaN now and then, as the memory happens to be.",
    links=github(
        "Dao-AILab/flash-attention/issues/2374",
        "Dao-AILab/flash-attention/issues/1745",
        "deepbeepmeep/Wan2GP/pull/1628",
    ),
)
def unused_values_multiplied_by_zero(stream: Stream) -> Feed:
    def everything(store: Rows, new: Rows, after: Rows) -> Rows:
        far = after.positions.masked_fill(after.positions < 0, stream.room)
        return visible(store, new, after) if stream.ring else Rows(after.key, after.value, far)

    return CacheSteps(visible=everything).open(stream)


@breaks_cache("cache.ring", step="visible", holds=("cache.decode", "cache.chunked-prefill", "cache.static")).entry(
    does="Writes a chunk into the ring before it attends.",
    repair="Attend to the cached keys and to the chunk itself, then write; or make the ring longer by a chunk.",
    hides="Single tokens, and rings that are not full.",
    links=github(
        "Lightning-AI/litgpt/issues/2182", "pytorch/executorch/pull/20346", "huggingface/transformers/pull/40893"
    ),
)
def ring_written_before_it_is_read(store: Rows, new: Rows, after: Rows) -> Rows:
    return after.written


@breaks_cache("cache.ring", step="write", holds=("cache.decode", "cache.static")).entry(
    does="Caches the beginning of a chunk that is longer than the ring.",
    repair="Cache its end.",
    hides="Chunks that fit.",
    matters="After a long prompt the model remembers its beginning, and not its end.",
    links=github("Lightning-AI/litgpt/pull/2215"),
)
def beginning_of_a_long_chunk_cached(store: Rows, new: Rows, stream: Stream) -> Rows:
    if not 0 < stream.room < len(new.positions):
        return write(store, new, stream)
    return write_slots(store, new.select(torch.arange(stream.room)), torch.arange(stream.room))


@breaks_cache("cache.ring", holds=("cache.decode", "cache.static")).entry(
    does="Drops the oldest key one step too early.",
    repair="A window of l keys before the query's own takes l + 1 slots.",
    hides="Sequences within the window.",
    links=github("huggingface/transformers/issues/37574"),
)
def oldest_key_dropped_too_early(stream: Stream) -> Feed:
    def seen(store: Rows, new: Rows, after: Rows) -> Rows:
        kept = store.written
        full = stream.ring and len(kept.positions) == stream.room
        oldest = int(new.positions[0]) - stream.room + 1
        return joined(kept.select(kept.positions > oldest), new) if full else joined(kept, new)

    return CacheSteps(visible=seen).open(stream)


@breaks_cache(
    "cache.decode", "cache.chunked-prefill", step="write", holds=("causal.square",), severity=PRECISION
).entry(
    does="Caches keys and values in bfloat16, whatever their dtype is.",
    repair="Cache them in their dtype, or document that the cache is compressed.",
    hides="Inputs in bfloat16; the first chunk.",
    matters="What is written token by token drifts away from what would be written at once.",
)
def cached_in_bfloat16(store: Rows, new: Rows, stream: Stream) -> Rows:
    key, value = (rows.bfloat16().to(rows.dtype) for rows in (new.key, new.value))
    return write(store, Rows(key, value, new.positions), stream)


@breaks_cache("cache.decode", step="visible", holds=("causal.square", "relations.batch"), severity=LEAK).entry(
    does="Gives all samples the cached keys of the first.",
    repair="Cache a row for each sample, and reorder rows with the samples.",
    hides="A batch of one, and samples with the same prompt.",
    matters="Answers mix the prompts of different users.",
)
def first_sample_cached_for_all(store: Rows, new: Rows, after: Rows) -> Rows:
    kept = store.written
    return joined(Rows(kept.key[:1].expand_as(kept.key), kept.value[:1].expand_as(kept.value), kept.positions), new)


@breaks_cache(
    "cache.decode", "cache.chunked-prefill", step="write", holds=("cache.static", "cache.ring", "cache.new-sequence")
).entry(
    does="Copies the keys and not the values into the larger storage, once 64 positions or a double are full.",
    repair="Copy all that is cached when storage grows.",
    hides="Sequences that fit into the first storage.",
    matters="A conversation loses its beginning when it grows beyond a power of two.",
)
def values_left_behind_when_storage_grows(store: Rows, new: Rows, stream: Stream) -> Rows:
    after, held = write(store, new, stream), len(store.positions)
    if stream.room or _storage(held) == _storage(len(after.positions)):
        return after
    value = after.value.clone()
    value[:, :, :held] = 0.0
    return Rows(after.key, value, after.positions)


def _storage(length: int) -> int:
    """64 or a double of it."""
    return max(64, 1 << (length - 1).bit_length())
