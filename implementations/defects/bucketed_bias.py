"""Mistakes of chapter 33: biases by bucket of distances, and their gradients."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, add_buckets, bucket
from attention_conformance.implementations.defects.breaking import GRADIENT, breaks
from attention_conformance.spec.features import Feature

OPTIONS = frozenset({Feature.BUCKET_DISTANCE, Feature.BUCKET_DIRECTIONS, Feature.QUERY_START})
BUCKETS = OPTIONS | {Feature.BUCKETED_BIAS}
SCORES, GRADIENTS = "bucketed-bias.scores", "bucketed-bias.gradient"
PLAIN = ("scores.dot-product", "masks.float")
breaks_buckets = partial(breaks, claims=BUCKETS, holds=PLAIN)
breaks_bucket = partial(breaks_buckets, step="bucket")
breaks_table = partial(breaks_buckets, step="add_buckets")


@breaks_bucket(SCORES, GRADIENTS, "bucketed-bias.start", "bucketed-bias.directions")
def bucket_from_key_to_query(ahead: Tensor, count: int, most: int, bidirectional: bool) -> Tensor:
    return bucket(-ahead, count, most, bidirectional)


@breaks_bucket(SCORES, GRADIENTS, "bucketed-bias.start")
def later_keys_in_the_first_half(ahead: Tensor, count: int, most: int, bidirectional: bool) -> Tensor:
    found = bucket(ahead, count, most, bidirectional)
    return (found + count // 2) % count if bidirectional else found


@breaks_bucket("bucketed-bias.directions", holds=(SCORES, GRADIENTS, "bucketed-bias.distance"))
def both_directions_always(ahead: Tensor, count: int, most: int, bidirectional: bool) -> Tensor:
    return bucket(ahead, count, most, True)


@breaks_bucket("bucketed-bias.directions", holds=(SCORES, GRADIENTS, "bucketed-bias.distance"))
def later_keys_by_their_distance(ahead: Tensor, count: int, most: int, bidirectional: bool) -> Tensor:
    return bucket(ahead if bidirectional else -ahead.abs(), count, most, bidirectional)


@breaks_bucket("bucketed-bias.distance", holds=(SCORES, GRADIENTS, "bucketed-bias.directions"))
def largest_distance_ignored(ahead: Tensor, count: int, most: int, bidirectional: bool) -> Tensor:
    return bucket(ahead, count, 128, bidirectional)


@breaks_bucket(SCORES, GRADIENTS, "bucketed-bias.start", "bucketed-bias.distance")
def every_distance_a_bucket(ahead: Tensor, count: int, most: int, bidirectional: bool) -> Tensor:
    if bidirectional:
        return ahead.abs().clamp(max=count // 2 - 1) + count // 2 * (ahead > 0)
    return (-ahead).clamp(0, count - 1)


@breaks_bucket(SCORES, GRADIENTS)
def exact_distances_one_too_many(ahead: Tensor, count: int, most: int, bidirectional: bool) -> Tensor:
    found, side = bucket(ahead, count, most, bidirectional), count // 2 if bidirectional else count
    near = (ahead.abs() == side // 2 + 1) & ((ahead < 0) | bidirectional)
    return torch.where(near, found.clamp(max=count - 2) + 1, found)


@breaks_table(SCORES, GRADIENTS, "bucketed-bias.start")
def table_of_the_first_head(scores: Tensor, table: Tensor, of: Tensor) -> Tensor:
    return add_buckets(scores, table[:, :1].expand_as(table), of)


@breaks_buckets(SCORES, GRADIENTS)
def bucketed_bias_scaled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    by = query.shape[-1] ** -0.5 if options.get("scale") is None else options["scale"]
    return Steps(add_buckets=lambda scores, table, of: add_buckets(scores, table * by, of))(
        query, key, value, **options
    )


@breaks_buckets("bucketed-bias.start", holds=(SCORES, GRADIENTS, *PLAIN))
def buckets_by_the_number_of_the_row(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "bucketed_bias" not in options:
        return Steps()(query, key, value, **options)
    queries, keys = (torch.arange(x.shape[-2]) for x in (query, key))

    def of_rows(ahead: Tensor, *rest: Any) -> Tensor:
        return bucket((keys - queries[:, None]).expand_as(ahead), *rest)

    return Steps(bucket=of_rows)(query, key, value, **options)


@breaks_table(GRADIENTS, holds=(SCORES, *PLAIN), severity=GRADIENT)
def gradient_of_buckets_averaged(scores: Tensor, table: Tensor, of: Tensor) -> Tensor:
    averaged = table / len(scores)
    return add_buckets(scores, averaged + (table - averaged).detach(), of)


@breaks_bucket(SCORES, GRADIENTS)
def distance_of_zero_among_the_later(ahead: Tensor, count: int, most: int, bidirectional: bool) -> Tensor:
    found = bucket(ahead, count, most, bidirectional)
    return found + count // 2 * (ahead == 0) if bidirectional else found


@breaks_bucket(SCORES, GRADIENTS, "bucketed-bias.distance")
def half_of_the_largest_distance(ahead: Tensor, count: int, most: int, bidirectional: bool) -> Tensor:
    return bucket(ahead, count, max(most // 2, count // 4 + 1) if bidirectional else most, bidirectional)


@breaks_table(SCORES, GRADIENTS)
def table_read_head_by_head(scores: Tensor, table: Tensor, of: Tensor) -> Tensor:
    return add_buckets(scores, table.reshape(table.shape[::-1]).T, of)


@breaks_table(GRADIENTS, holds=(SCORES, *PLAIN), severity=GRADIENT)
def first_bucket_never_learned(scores: Tensor, table: Tensor, of: Tensor) -> Tensor:
    return add_buckets(scores, torch.cat([table[:1].detach(), table[1:]]), of)
