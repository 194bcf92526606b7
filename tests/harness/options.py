"""Options: what is out of the ordinary about a case, as words that can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from spec.cases import Case, Sizes


def options(case: Case) -> frozenset[str]:
    """Such as {"mask=bool", "Lq = Lk"}."""
    plain = Case(module=case.module)
    named = (f.name for f in fields(plain) if f.name not in ("sizes", "seed", "module"))
    found = {f"{n}={getattr(case, n)}" for n in named if getattr(case, n) != getattr(plain, n)}
    return frozenset(found | set(_extents(case.sizes)))


def _extents(s: Sizes) -> Iterator[str]:
    """What is out of the ordinary about sizes, as properties rather than numbers."""
    facts = {
        "no keys": s.key_length == 0,
        "no samples or no queries": 0 in (s.batch, s.query_length),
        "one query": s.query_length == 1,
        "one key": s.key_length == 1,
        "Lq = Lk": s.query_length == s.key_length,
        "Lq > Lk": s.query_length > s.key_length,
        "B = H": s.batch == s.num_heads > 1,
        "more than 64 keys": s.key_length > 64,
        "more than 64 queries": s.query_length > 64,
        "one head": s.num_heads == 1,
        "odd head width": s.d_k % 2 == 1,
        "d_v > d_k": s.d_v > s.d_k,
        "wide heads": max(s.d_k, s.d_v) > 64,
        "many samples and heads": s.batch * s.num_heads > 32,
    }
    return (name for name, holds in facts.items() if holds)
