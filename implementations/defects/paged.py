"""Mistakes of chapter 31: where keys and values in pages are read, and how many of them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.paging import PagedCall, lengths_of_samples
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.inhouse.paged import ALIGNED, FEATURES
from attention_conformance.implementations.builtin.stepwise import paged_steps as correct
from attention_conformance.implementations.builtin.stepwise.paged_steps import PagedSteps
from attention_conformance.implementations.defects.breaking import LEAK, NAN, PRECISION, Breach, Facts
from attention_conformance.spec.features import Scope

PLAIN = ("scores.dot-product", "softmax.rows-sum-to-one")


def _made(steps: tuple[str, ...], name: str, mistake: Callable[..., Any]) -> Implementation:
    replaced: dict[str, Any] = dict.fromkeys(steps, mistake)
    claims = Claims(Scope.OP, FEATURES, ALIGNED, fit=lengths_of_samples)
    return Implementation(name, claims, torch_op(PagedCall(PagedSteps(**replaced) if steps else mistake)))


def breaks_pages(*clauses: str, steps: tuple[str, ...] = (), **facts: Unpack[Facts]) -> Breach:
    """A mistake of these steps of `PagedSteps`; without any, it is a whole function of pages."""
    return Breach(clauses, partial(_made, steps), {"holds": PLAIN, **facts})


breaks_order = partial(breaks_pages, "paged.table", "paged.shared-prefix", steps=("pages_of",))
breaks_length = partial(breaks_pages, "paged.lengths", "paged.decode", steps=("length_of",))
breaks_rows = partial(breaks_pages, holds=("paged.table", "paged.lengths"))
breaks_append = partial(breaks_pages, "paged.append", holds=("paged.lengths", "causal.square"))


@breaks_order("paged.lengths")
def pages_in_the_order_of_the_pool(table: Tensor, sample: int, count: int) -> Tensor:
    return correct.pages_of(table, sample, count).sort().values


@breaks_order("paged.lengths", severity=LEAK, holds=("shapes.output",))
def table_of_the_first_sample(table: Tensor, sample: int, count: int) -> Tensor:
    return correct.pages_of(table, 0, count)


@breaks_order(severity=LEAK)
def pages_that_follow_the_first(table: Tensor, sample: int, count: int) -> Tensor:
    return (table[sample, :1].long() + torch.arange(count)).clamp(max=int(table.max()) + 1)


@breaks_pages("paged.table", steps=("gather_values",))
def values_in_the_order_of_the_pool(pool: Tensor, pages: Tensor) -> Tensor:
    return correct.gather(pool, pages.sort().values)


@breaks_pages("paged.table", "paged.grouped", steps=("gather", "gather_values"), holds=("shapes.output",))
def heads_before_the_tokens_of_a_page(pool: Tensor, pages: Tensor) -> Tensor:
    found = pool[pages]
    return found.reshape(len(pages), pool.shape[2], pool.shape[1], -1).transpose(1, 2).flatten(0, 1)


@breaks_length(holds=("paged.table", "scores.dot-product"), severity=LEAK)
def length_of_the_first_sample(lengths: Tensor, sample: int, size: int) -> int:
    return int(lengths[0])


@breaks_length(severity=LEAK)
def length_rounded_up_to_pages(lengths: Tensor, sample: int, size: int) -> int:
    return correct.count_pages(int(lengths[sample]), size) * size


@breaks_length(holds=("shapes.output",))
def length_without_the_new_token(lengths: Tensor, sample: int, size: int) -> int:
    return int(lengths[sample]) - 1


@breaks_length(severity=LEAK)
def one_page_more_where_the_last_is_full(lengths: Tensor, sample: int, size: int) -> int:
    length = int(lengths[sample])
    return length + (size if length % size == 0 else 0)


@breaks_pages("paged.lengths", "paged.decode", steps=("count_pages",))
def last_page_left_out(length: int, size: int) -> int:
    return max(1, length // size)


@breaks_pages("paged.fresh-memory", holds=("paged.lengths", "paged.append"), severity=NAN)
def values_of_fresh_memory_times_zero(*given: Any, **options: Any) -> Tensor:
    def mix(weights: Tensor, value: Tensor) -> Tensor:
        return torch.nn.functional.pad(weights, (0, value.shape[-2] - weights.shape[-1])) @ value

    return PagedSteps(held_values=lambda rows, length: rows, mix=mix)(*given, **options)


@breaks_rows("paged.cache-rows", severity=LEAK)
def rows_in_the_order_of_samples(*given: Any, cache_batch_idx: Tensor | None = None, **options: Any) -> Tensor:
    return PagedSteps()(*given, **options)


@breaks_rows("paged.cache-rows", severity=LEAK)
def values_of_the_row_of_the_same_number(*given: Any, cache_batch_idx: Tensor | None = None, **options: Any) -> Tensor:
    query, keys, values, *others = given
    if cache_batch_idx is not None:
        others[0], keys = None, keys[cache_batch_idx.long()]
    return PagedSteps()(query, keys, values[: len(keys)] if others[0] is None else values, *others, **options)


@breaks_rows("paged.cache-rows", severity=LEAK, holds=("paged.lengths", "paged.decode"))
def lengths_by_row_of_the_cache(*given: Any, cache_batch_idx: Tensor | None = None, **options: Any) -> Tensor:
    query, keys, values, table, lengths = given
    if cache_batch_idx is not None:
        lengths = lengths[cache_batch_idx.long().clamp(max=len(lengths) - 1)]
    return PagedSteps()(query, keys, values, table, lengths, cache_batch_idx=cache_batch_idx, **options)


@breaks_append(steps=("first_query",))
def corner_by_the_room_in_the_pages(length: int, queries: int, room: int) -> int:
    return room - queries


@breaks_append(steps=("first_query",))
def corner_at_the_first_key(length: int, queries: int, room: int) -> int:
    return 0


@breaks_pages("paged.append", steps=("visible",), holds=("paged.table", "paged.decode"), severity=LEAK)
def appended_tokens_see_each_other(query: Tensor, key: Tensor, is_causal: bool, window: tuple[int, int]) -> Tensor:
    return correct.visible(query, key, False, window)


@breaks_pages("paged.window", holds=("paged.append", "window.extent"))
def window_that_ends_with_a_page(*given: Any, **options: Any) -> Tensor:
    size = given[1].shape[1]

    def visible(query: Tensor, key: Tensor, is_causal: bool, window: tuple[int, int]) -> Tensor:
        seen = correct.visible(query, key, is_causal, window)
        return seen & (key[None, :] // size == query[:, None] // size) if window[0] >= 0 else seen

    return PagedSteps(visible=visible)(*given, **options)


@breaks_pages("paged.grouped", steps=("repeat",), holds=("paged.table", "paged.append"))
def key_heads_in_turn_over_pages(rows: Tensor, heads: int) -> Tensor:
    return rows.repeat(1, heads // rows.shape[1], 1)


@breaks_pages("paged.lengths", "paged.decode", steps=("softmax",), holds=("paged.table", "paged.append"))
def parts_of_512_keys_not_rescaled(scores: Tensor) -> Tensor:
    parts = [(part - part.amax(-1, keepdim=True).clamp(min=-1e30)).exp() for part in scores.split(512, -1)]
    joined = torch.cat(parts, -1)
    return joined / joined.sum(-1, keepdim=True).clamp(min=1e-30)


@breaks_pages("paged.placement", holds=("paged.table", "paged.lengths", "paged.append"), severity=PRECISION)
def summed_in_the_order_of_the_pool(*given: Any, **options: Any) -> Tensor:
    query, keys, values, table, lengths = given
    if table is None:
        return PagedSteps()(*given, **options)
    size, outputs = keys.shape[1], []
    for sample, length in enumerate(lengths.tolist()):
        order = table[sample, : correct.count_pages(length, size)].argsort()
        places = (order[:, None] * size + torch.arange(size)).flatten()
        places = places[places < length]

        def visible(of_query: Tensor, of_key: Tensor, *others: Any, places: Tensor = places) -> Tensor:
            return correct.visible(of_query, places, *others)

        def held(rows: Tensor, length: int, places: Tensor = places) -> Tensor:
            return rows[places]

        steps = PagedSteps(visible=visible, held=held, held_values=held)
        one = slice(sample, sample + 1)
        outputs.append(steps(query[one], keys, values, table[one], lengths[one], **options))
    return torch.cat(outputs) if outputs else PagedSteps()(*given, **options)
