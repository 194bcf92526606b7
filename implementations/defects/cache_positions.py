"""Mistakes of chapter 23: positions that are lost between pieces, in a ring, and in a call with a start."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.cached import Feed, Stream
from attention_conformance.implementations.builtin.stepwise.cache_steps import (
    CacheSteps,
    Rows,
    joined,
    rotate_key,
    rotate_query,
)
from attention_conformance.implementations.builtin.stepwise.steps import Steps, add_alibi, add_window
from attention_conformance.implementations.defects.breaking import LEAK, breaks, breaks_cache, github
from attention_conformance.spec.features import Feature

START = {Feature.QUERY_START}


def standing(scores: Tensor) -> Tensor:
    """(1, Lq, Lk): so far key j is ahead of query i if both count from 0."""
    keys, queries = torch.arange(scores.shape[-1]), torch.arange(scores.shape[-2])
    return (keys - queries[:, None])[None]


@breaks_cache(
    "cache.window",
    "cache.query-start",
    of_steps="add_window",
    holds=("cache.decode", "cache.chunked-prefill", "cache.alibi"),
).entry(
    does="Counts the window from the index of a query in its chunk.",
    repair="Count it from the position in the sequence.",
    hides="The first chunk.",
    links=github("trymirai/lalamo/pull/200", "pytorch/executorch/pull/21857"),
)
def window_counted_in_the_chunk(scores: Tensor, ahead: Tensor, window: tuple[int, int]) -> Tensor:
    return add_window(scores, standing(scores), window)


@breaks_cache(
    "cache.window", of_steps="add_window", holds=("cache.decode", "cache.chunked-prefill", "cache.rotary")
).entry(
    does="Applies the window only in chunks of several tokens.",
    repair="Apply it to single queries too, or cache no more keys than it shows.",
    hides="Prompts, and sequences within the window.",
)
def window_forgotten_for_single_tokens(scores: Tensor, ahead: Tensor, window: tuple[int, int]) -> Tensor:
    return scores if scores.shape[-2] == 1 else add_window(scores, ahead, window)


@breaks_cache(
    "cache.alibi",
    "cache.ring-positions",
    of_steps="add_alibi",
    holds=("cache.decode", "cache.rotary", "cache.chunked-prefill"),
).entry(
    does="Builds the biases of ALiBi over the queries, so that they are 0 for a single one.",
    repair="Build them over the distance between query and key.",
    hides="A prompt in one chunk.",
    links=github("keras-team/keras-hub/issues/2861", "keras-team/keras-hub/pull/2977"),
)
def alibi_built_over_the_queries(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return scores if scores.shape[-2] == 1 else add_alibi(scores, slopes, ahead)


@breaks_cache(
    "cache.alibi",
    "cache.query-start-rows",
    of_steps="add_alibi",
    holds=("cache.decode", "cache.rotary", "cache.window"),
).entry(
    does="Takes distances from the index of a query in its chunk.",
    repair="Add the number of cached keys to the query's position.",
    hides="The first chunk.",
)
def distances_counted_in_the_chunk(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return add_alibi(scores, slopes, standing(scores))


@breaks_cache("cache.rotary", step="rotate_query", holds=("cache.decode", "cache.alibi", "cache.window")).entry(
    does="Rotates the queries of each chunk from position 0 on, and its keys by their positions.",
    repair="Give query and key the same offset.",
    hides="The first chunk.",
    links=github("RobertCsordas/moeut/pull/6"),
)
def queries_rotated_from_the_beginning(query: Tensor, positions: Tensor, base: float) -> Tensor:
    return rotate_query(query, positions - positions[:1], base)


@breaks_cache("cache.rotary", holds=("cache.decode", "cache.alibi", "cache.window")).entry(
    does="Rotates queries and keys of each chunk from position 0 on.",
    repair="Continue where the last chunk ended.",
    hides="The first chunk; each chunk is consistent in itself.",
    links=github("MemTensor/MemOS/issues/2315"),
)
def positions_restarted_in_each_chunk(stream: Stream) -> Feed:
    return CacheSteps(
        rotate_query=lambda query, positions, base: rotate_query(query, positions - positions[:1], base),
        rotate_key=lambda key, positions, base: rotate_key(key, positions - positions[:1], base),
    ).open(stream)


@breaks_cache("cache.rotary", holds=("cache.decode", "cache.alibi", "cache.window")).entry(
    does="Rotates cached keys again, though they were rotated before.",
    repair="Rotate keys either before they are cached or when they are read.",
    hides="The first chunk.",
    links=github("NeuraLegion/shainet/pull/110"),
)
def cached_keys_rotated_again(stream: Stream) -> Feed:
    base = stream.options.get("rotary_base")

    def rotated(store: Rows, new: Rows, after: Rows) -> Rows:
        kept = store.written
        again = kept.key if base is None else rotate_key(kept.key, kept.positions, base)
        return joined(Rows(again, kept.value, kept.positions), new)

    return CacheSteps(visible=rotated).open(stream)


@breaks_cache("cache.rotary", holds=("cache.decode", "cache.alibi", "cache.chunked-prefill")).entry(
    does="Remembers angles by the number of tokens, and uses them again at other positions.",
    repair="Remember them by position, for all that may come.",
    hides="Chunks of different lengths.",
    links=github("lucidrains/rotary-embedding-torch/issues/11"),
)
def angles_remembered_by_length(stream: Stream) -> Feed:
    known: dict[int, Tensor] = {}
    return CacheSteps(
        rotate_query=lambda query, positions, base: rotate_query(
            query, known.setdefault(len(positions), positions), base
        ),
        rotate_key=lambda key, positions, base: rotate_key(key, known.setdefault(len(positions), positions), base),
    ).open(stream)


@breaks_cache("cache.ring-positions", holds=("cache.ring", "cache.rotary")).entry(
    does="Rotates query and key of a token by the number of keys that a ring still holds.",
    repair="Count all tokens so far, cached or not.",
    hides="Rings that are not full, and caches that hold everything.",
    links=github("rajveer43/VeloxQuant-MLX/issues/389", "rajveer43/VeloxQuant-MLX/pull/195"),
)
def offset_of_what_is_left(stream: Stream) -> Feed:
    def left(positions: Tensor) -> Tensor:
        return positions - max(0, int(positions[0]) - stream.room) if stream.ring else positions

    return CacheSteps(
        rotate_query=lambda query, positions, base: rotate_query(query, left(positions), base),
        rotate_key=lambda key, positions, base: rotate_key(key, left(positions), base),
    ).open(stream)


@breaks_cache(
    "cache.ring-positions", "cache.ring", step="visible", holds=("cache.static", "cache.alibi", "cache.window")
).entry(
    does="Takes the order of the slots of a ring for the order of its tokens.",
    repair="Work out the position of each slot, or roll the ring before it is read.",
    hides="A ring that has not wrapped, and single tokens without biases of position.",
    links=github("rajveer43/VeloxQuant-MLX/pull/392", "Lightning-AI/litgpt/issues/2182"),
)
def slots_taken_for_positions(store: Rows, new: Rows, after: Rows) -> Rows:
    kept = store.written
    return joined(Rows(kept.key, kept.value, kept.positions.sort().values), new)


breaks_start = partial(breaks, claims=START)


@breaks_start("cache.query-start", "cache.query-start-rows", holds=("causal.square", "causal.alignment")).entry(
    does="Ignores the start of the queries.",
    repair="Shift the triangle by it.",
    hides="A start of 0.",
    links=github("huggingface/candle/pull/3743"),
)
def start_forgotten(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    options.pop("query_start", None)
    return Steps()(query, key, value, **options)


@breaks_start("cache.query-start", holds=("cache.query-start-rows", "causal.square"), severity=LEAK).entry(
    does="Takes a start of 0 for none, and aligns queries and keys at their ends.",
    repair="Test for None: 0 is a start.",
    hides="Starts above 0, and as many queries as keys.",
    matters="The first chunk that is written into a long buffer sees all of it.",
)
def start_of_zero_taken_for_none(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "query_start" in options:
        options["query_start"] = options["query_start"] or max(0, key.shape[-2] - query.shape[-2])
    return Steps()(query, key, value, **options)


@breaks_start("cache.query-start", holds=("cache.query-start-rows", "causal.square"), severity=LEAK).entry(
    does="Puts the last query at the last key, whatever start is given.",
    repair="Take the start that is given: storage may hold more keys than are valid.",
    hides="Keys that end where the queries end.",
    matters="With a buffer longer than the text, queries see what was never written.",
    links=github("onnx/onnx/pull/8068"),
)
def start_taken_from_the_end(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "query_start" in options:
        options["query_start"] = max(0, key.shape[-2] - query.shape[-2])
    return Steps()(query, key, value, **options)


@breaks("cache.query-start-rows", claims=START | {Feature.ROTARY}, holds=("cache.query-start", "causal.square")).entry(
    does="Shifts the triangle by the start, and rotates queries from position 0 on.",
    repair="One position for all that depends on it.",
    hides="Calls without rotary embedding, and without a start.",
)
def start_for_the_triangle_only(
    query: Tensor, key: Tensor, value: Tensor, query_start: int = 0, **options: Any
) -> Tensor:
    base = options.get("rotary_base")
    if base is not None and query_start:
        query = rotate_query(query, torch.full((query.shape[-2],), -query_start), base)
    return Steps()(query, key, value, query_start=query_start, **options)
