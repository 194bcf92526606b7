"""What a case from elsewhere may hold, from a file or a candidate: numbers that can be compared, of moderate sizes."""

import math
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Extension

MOST_ELEMENTS = 2**23
"""Of the scores, of an input or of a parameter: 64 MiB each in float64. The suite's own cases have fewer."""
MOST_NUMBER = 2.0**1000
ZERO = ("batch", "query_length", "key_length", "num_kv_heads")
"""Extents that may be 0: of arrays without elements, and the default of the last."""


def unusable(case: Case, elements: int = MOST_ELEMENTS) -> str:
    """Why the numbers of a case cannot be compared or built, in arrays of so many elements; empty if they can."""
    for name, number in _numbers(case, "case"):
        if not math.isfinite(number):
            return f"{name} is {number}: no numbers can be compared with it"
    for extent, number in vars(case.sizes).items():
        least = 0 if extent in ZERO else 1
        if number < least:
            return f"case.sizes.{extent} is {number}, and has to be {least} at least"
    if case.sizes.num_heads % case.sizes.kv_heads:
        return (
            f"case.sizes.num_kv_heads is {case.sizes.num_kv_heads}, which does not divide {case.sizes.num_heads} heads"
        )
    if case.score_std < 0 or case.extension.relative_bias < 0 or min(case.extension.chunks, default=1) < 1:
        return "case.score_std, case.extension.relative_bias and the lengths of chunks cannot be negative"
    if (dim := case.extension.rotary_dim) is not None and not (dim % 2 == 0 < dim <= case.sizes.d_k):
        return f"case.extension.rotary_dim is {dim}, and has to be even, and 2 to {case.sizes.d_k}, the width of a head"
    if min(case.extension.page_size, case.extension.cache_rows) < 0:
        return "case.extension.page_size and case.extension.cache_rows cannot be negative"
    if case.extension.norm_epsilon is not None and case.extension.norm_epsilon < 0.0:
        return f"case.extension.norm_epsilon is {case.extension.norm_epsilon}, and cannot be negative"
    if min(case.extension.latent, case.extension.decoupled) < 0:
        return "case.extension.latent and case.extension.decoupled cannot be negative"
    if wrong := _unusable_buckets(case.extension):
        return wrong
    most = max(_elements(case))
    if most > elements:
        return f"the case has an array of {most} elements, more than the {elements} that are computed"
    return ""


def _unusable_buckets(extension: Extension) -> str:
    """Each direction needs two buckets at least, and distances that grow from the exact ones to the last."""
    buckets, sides = extension.bucketed_bias, 2 if extension.bidirectional else 1
    if not buckets:
        return ""
    if buckets < 2 * sides or buckets % sides:
        return f"case.extension.bucketed_bias is {buckets}, and has to be {2 * sides} at least, for {sides} equal sides"
    if extension.max_distance <= buckets // sides // 2:
        return f"case.extension.max_distance is {extension.max_distance}, and has to be more than the exact distances"
    return ""


def _numbers(data: Any, name: str) -> Iterator[tuple[str, float]]:
    if is_dataclass(data):
        for key, value in vars(data).items():
            yield from _numbers(value, f"{name}.{key}")
    elif isinstance(data, int | float):
        yield name, math.inf if abs(data) >= MOST_NUMBER else data


def _elements(case: Case) -> Iterator[int]:
    """Of every array that the case makes, about."""
    s, e, form = case.sizes, case.extension, case.module
    heads = max(s.batch, 1) * s.num_heads
    rows = max(s.query_length, s.key_length, e.cache_length, abs(e.query_start or 0), sum(e.chunks), 1)
    yield (s.batch + e.cache_rows) * s.kv_heads * max(s.key_length, 1) * max(s.d_k, s.d_v)
    yield heads * max(s.query_length, 1) * max(s.key_length, e.cache_length, 1)
    yield heads * rows * max(s.d_k, s.d_v)
    yield s.num_heads * e.relative_bias
    yield s.num_heads * e.bucketed_bias
    yield s.num_heads * e.latent * max(s.d_k, s.d_v)
    yield max(s.batch, 1) * rows * (e.latent + e.decoupled)
    if form is not None:
        widest = max(form.query_dim, form.key_dim, form.value_dim, form.out_dim, 1)
        yield widest * max(s.batch, 1) * rows
        yield widest * s.num_heads * max(s.d_k, s.d_v)
