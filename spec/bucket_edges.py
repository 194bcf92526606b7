"""Buckets of distances: where two of them meet so closely that roundings decide which one a distance is in."""

import math

from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Extension

LOG_STEPS = 8.0
"""Unit roundoffs of float32 that the place of a distance among the buckets may be off, relative to its size: quotients,
two logarithms, their quotient, and the product with the number of buckets."""
SINGLE = 2.0**-24
MOST_START = 5
"""No start that samples have of their own is larger, unless their last queries stand at their last keys."""


def undecided(case: Case) -> int | None:
    """The smallest distance in the case whose bucket roundings of float32 decide; None: there is none."""
    extension = case.extension
    if not extension.bucketed_bias:
        return None
    return next((distance for distance in range(reach(case) + 1) if _is_edge(extension, distance)), None)


def reach(case: Case) -> int:
    """The largest distance of a key from a query that the case may have."""
    s, extension = case.sizes, case.extension
    start = MOST_START if extension.query_starts else max(0, extension.query_start or 0)
    return max(start + s.query_length, s.key_length) - 1


def _is_edge(extension: Extension, distance: int) -> bool:
    """Whether the logarithm of equation 33.1 is a whole number, or may be rounded to one from either side."""
    count = extension.bucketed_bias // (2 if extension.bidirectional else 1)
    exact = count // 2
    if not exact < distance < extension.max_distance:
        return False
    place = (count - exact) * math.log(distance / exact) / math.log(extension.max_distance / exact)
    return abs(place - round(place)) <= LOG_STEPS * SINGLE * place
