"""Right biases by bucket of distances in unusual styles."""

import math
from bisect import bisect_right
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, bucket
from attention_conformance.implementations.defects.bucketed_bias import BUCKETS
from attention_conformance.spec.features import MAX_DISTANCE, Feature
from attention_conformance.tests.selftest.right.right import BOTH, op

CLAIMED = BUCKETS | {Feature.GROUPED}


def in_float32(ahead: Tensor, count: int, most: int, bidirectional: bool) -> Tensor:
    """The logarithm in float32, of all distances, 0 included, as published models have it."""
    if bidirectional:
        return torch.where(ahead > 0, count // 2, 0) + in_float32(-ahead.abs(), count // 2, most, False)
    distance, exact = -ahead.clamp(max=0), count // 2
    far = exact + (torch.log(distance.float() / exact) / math.log(most / exact) * (count - exact)).clamp(min=0).long()
    return torch.where(distance < exact, distance, far.clamp(max=count - 1))


def from_a_list(ahead: Tensor, count: int, most: int, bidirectional: bool) -> Tensor:
    """The distances at which buckets begin, searched by halves."""
    side = count // 2 if bidirectional else count
    exact = side // 2
    edges = [*range(1, exact), *(exact * (most / exact) ** (n / (side - exact)) for n in range(side - exact))]
    found = [bisect_right(edges, abs(at) if bidirectional else -at) for at in ahead.flatten().tolist()]
    return torch.tensor(found, dtype=torch.long).view_as(ahead) + side * ((ahead > 0) & bidirectional)


def one_hot(scores: Tensor, table: Tensor, of: Tensor) -> Tensor:
    """The table multiplied by zeros and ones, so that its gradient is a product, too."""
    return scores + (F.one_hot(of, len(table)).to(table.dtype) @ table).permute(0, 3, 1, 2)


def as_a_mask(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """The biases of all pairs are made before attention, and added with the steps of a relative bias."""
    table: Tensor | None = options.pop("bucketed_bias", None)
    most, both = options.pop("max_distance", MAX_DISTANCE), options.pop("bidirectional", True)
    if table is None:
        return Steps().answer(query, key, value, **options)
    reach = key.shape[-2] + query.shape[-2] + (options.get("query_start") or 0)
    distances = torch.arange(-reach, reach + 1)[None]
    return Steps().answer(
        query, key, value, relative_bias=table[bucket(distances, len(table), most, both)[0]].T, **options
    )


RIGHT = (
    op("buckets.float32", Steps(bucket=in_float32), CLAIMED),
    op("buckets.list", Steps(bucket=from_a_list, add_buckets=one_hot), CLAIMED),
    op("buckets.mask", as_a_mask, CLAIMED, extras=BOTH),
)
