"""Chunks: attention in which a query sees the keys of its own chunk, and perhaps of some before, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from attention_conformance.implementations.discovery.always import changes
from attention_conformance.implementations.discovery.claim_checks import PLAIN, ClaimCheck
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.spec.premises import NO_PREMISES

LENGTH = 96
LONG = PLAIN.sized(query_length=LENGTH, key_length=LENGTH)
IN_CHUNKS = (
    "each query sees the keys of its own chunk of {} tokens{}, and no others: no expected answer has such a mask"
)


def without_chunks(check: ClaimCheck) -> None:
    """Looks at which queries see a key, of what always does the same and hides nothing else.

    Raises:
        TargetError: they are those of chunks.
    """
    if replace(check.claims.premises, causal=False) != NO_PREMISES or next(_ends(check, (0,)), LENGTH) == LENGTH:
        return
    ends = list[int]()
    for end in _ends(check, tuple(range(LENGTH))):
        if ends and ends[-1] + 1 == end < LENGTH:  # as in a window, which moves on with each key
            return
        ends.append(end)
    inner = [end for end in ends if end < LENGTH]
    size = min((after - before for before, after in pairwise(inner) if after > before), default=0)
    if size < 2 or len({*inner}) < 2 or len(ends) < LENGTH:
        return
    before = inner[0] // size - 1
    if ends == [min(LENGTH, (key // size + 1 + before) * size) for key in range(LENGTH)]:
        raise TargetError(IN_CHUNKS.format(size, f" and of {before} before it" if before else ""))


def _ends(check: ClaimCheck, keys: tuple[int, ...]) -> Iterator[int]:
    """The number of the query after the last one that sees each key; those of keys that no query sees are left out."""
    return (int(seen.nonzero()[0][-1]) + 1 for _, seen in changes(check, LONG, at=keys) if seen.any())
