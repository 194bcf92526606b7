"""Names of caches that functions take, and of what makes them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection
from typing import Any

from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.claim_checks import ClaimCheck
from attention_conformance.implementations.discovery.documented import as_written
from attention_conformance.implementations.discovery.functions.size_limits import with_equal_lengths
from attention_conformance.implementations.discovery.signatures import required, signature_of
from attention_conformance.implementations.discovery.unclaimed import unclaimed
from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.features import Feature

PASTS = {"past", "cache", "caches", "cached", "state", "states"}
"""Words in the names of what a function is given of the calls before."""
OTHERWISE = {
    *("len", "lens", "length", "lengths", "seqlens", "size", "pos", "position", "positions", "idx", "index", "indices"),
    *("use", "return", "max", "dtype", "batch", "block", "page", "table", "mask", "bias", "scale", "start", "offset"),
    *("rng", "random", "seed", "generator", "dict"),
}
"""Words in the names of something about a cache, or of another state."""
OF_KEYS, OF_VALUES = {"k", "key", "keys"}, {"v", "value", "values"}
MAKING = {"setup", "set", "init", "make", "create", "allocate", "alloc", "build", "new", "empty"}
MADE = {"cache", "caches", "kv", "state", "states"}
"""Words in the names of a function that makes an empty cache."""
OF_STEPS = re.compile(
    r"\b(?:one|a single|single)(?: new)? token(?: at a time| per (?:call|step)|s one by one)|token[- ]by[- ]token"
    r"|\b(?:then|afterwards|later),? (?:one|single)(?: new)? tokens?\b|\b(?:decode|decoding) steps? of one token",
    re.IGNORECASE,
)
OF_PIECES = re.compile(
    r"\b(?:chunk|piece|block of tokens|several tokens|any (?:number|length)|anything)", re.IGNORECASE
)
OF_SEVERAL = re.compile(
    r"(?<!after )(?<!after the )\bpre-?fill|\bprompts?\b|\b(?:new|several|multiple|many) tokens\b", re.IGNORECASE
)
"""What states that several tokens come in one call."""


def takes_single_tokens(function: object) -> bool:
    """Whether it documents that one token comes at a time once there is a cache, and speaks of no pieces."""
    text = inspect.getdoc(as_written(function)) or ""
    return bool(OF_STEPS.search(text)) and not OF_PIECES.search(text)


def takes_several_tokens(function: object) -> bool:
    """Whether it documents that several tokens come in one call, and speaks of no single ones."""
    text = inspect.getdoc(as_written(function)) or ""
    return bool(OF_SEVERAL.search(text) or OF_PIECES.search(text)) and not OF_STEPS.search(text)


def makes_cache(name: str) -> bool:
    """Whether a function of this name makes an empty cache."""
    return bool(words_of(name) & MAKING and words_of(name) & MADE)


def cache_groups(function: Any) -> list[tuple[str, ...]]:
    """Its parameters that take a cache by their names: one for all of it, or two for keys and values."""
    signature = safe_call(lambda: signature_of(function)).value
    every = [] if signature is None else [*signature.parameters.values()][1:]
    named = {p.name: words_of(p.name) for p in every if p.default is None or required(p)}
    pasts = {name: words for name, words in named.items() if words & PASTS and not words & OTHERWISE}
    keys = [name for name, words in pasts.items() if words & OF_KEYS and not words & OF_VALUES]
    values = [name for name, words in pasts.items() if words & OF_VALUES and not words & OF_KEYS]
    pairs = [*zip(keys, values, strict=True)] if len(keys) == len(values) else []
    return [*pairs, *((name,) for name in pasts if not any(name in pair for pair in pairs))]


def holds_keys_and_values(function: Any, needed: Collection[str]) -> bool:
    """Whether what it needs are keys and values of earlier calls, by their names."""
    groups = (group for group in cache_groups(function) if {*group} <= {*needed})
    return any(len(group) > 1 or "kv" in words_of(group[0]) for group in groups)


def in_single_tokens(call: object) -> bool:
    """Whether what is called at last takes one token at a time, each with the cache of those before."""
    return _is_fed(call, "single")


def _is_fed(call: object, how: str) -> bool:
    """Whether what is called at last takes a cache in this way."""
    while call is not None:
        if hasattr(call, "past") and getattr(call, how, False):
            return True
        call = getattr(call, "function", None)
    return False


def lengths_of_cached(check: ClaimCheck) -> tuple[ClaimCheck, list[str]]:
    """The check with as many queries as keys where the keys before these come in a cache alone; and a note.

    That is so where one token comes at a time, where it is given the place of both, and where it rotates both: only the
    cache states their positions.
    """
    groups, premises = cache_groups(as_written(check.function)), check.claims.premises
    rotates = bool(premises.rotary_base and premises.hides_later)
    together = in_single_tokens(check.function) or _is_fed(check.function, "places")
    if not groups or Feature.CROSS not in check.claims or not (rotates or together):
        return check, []
    why = f"the keys before its queries come in {groups[0][0]!r}{', and it rotates both' if rotates else ''}"
    return with_equal_lengths(check), [unclaimed("other lengths of keys", why)]
