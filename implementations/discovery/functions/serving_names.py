"""What the parameters of serving kernels are, by the families of their names: caches, pages, lengths, documents."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

from attention_conformance.implementations.discovery.signatures import is_variadic, required


class Part(StrEnum):
    """What a parameter of a serving kernel takes."""

    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    PAIR = "key and value"
    TRIPLE = "query, key and value"
    NEW_KEY = "new keys"
    NEW_VALUE = "new values"
    LENGTHS = "the numbers of keys"
    QUERY_LENGTHS = "the numbers of queries"
    TABLE = "the pages of each sample"
    PAGE_SIZE = "tokens in a page"
    PAGES = "the pages of all samples"
    PAGE_ENDS = "where the pages of each sample end"
    LAST_PAGE = "tokens in each last page"
    ENDS = "where documents end"
    QUERY_ENDS = "where documents of queries end"
    KEY_ENDS = "where documents of keys end"
    LONGEST = "the longest document"
    LONGEST_QUERY = "the longest document of queries"
    LONGEST_KEY = "the longest document of keys"
    SEGMENTS = "the document of each token"
    QUERY_SEGMENTS = "the document of each query"
    KEY_SEGMENTS = "the document of each key"
    OUTPUT = "room for the output"


COMPOUNDS = (
    (r"cu_?seq_?(?=len|_|$)", "cu_seq_"),
    (r"(?<![a-z])kv_?cache", "kv_cache"),
    (r"(?<![a-z])([kv])_?(cache|pages|pool)", r"\1_\2"),
    (r"(seq|ctx|context|kv|key|cache|q)_?(lens?|lengths?)(?![a-z])", r"\1_\2"),
    (r"(block|page)_?(tables?)", r"\1_\2"),
    (r"seq_?used", "seq_len"),
    (r"seq_?start", "cu_seq"),
)
"""Spellings of several words in one, and with the words apart."""
OF_QUERY = {"q", "qo", "query", "queries", "xq", "qs"}
OF_KEY = {"k", "key", "keys", "xk", "ks"}
OF_VALUE = {"v", "value", "values", "xv", "vs"}
OF_KEYS = OF_KEY | {"kv", "context", "ctx", "cache", "cached", "memory", "past"}
STORED = {"cache", "caches", "cached", "page", "pages", "paged", "pool", "pools", "blocks", "buffer", "past"}
NEW = {"new", "cur", "current", "append", "fresh"}
AROUND = STORED | NEW | {"state", "states", "packed", "in", "all", "data", "tensor", "ptr"}
"""Words next to the role in the names of inputs."""
COUNTED = {"len", "lens", "length", "lengths"}
CUMULATIVE = {"cu", "cum", "cumulative", "cumsum", "indptr", "offsets"}
MOST = {"max", "longest"}
DOCUMENTS = {"segment", "segments", "seg", "segs", "doc", "docs", "document", "documents", "sequence", "seq"}
INDICES = {"indices", "index", "idx", "ids", "map", "mapping", "list", "numbers"}
ONE_PLACE = ({"cache", "index"}, {"cache", "idx"})
"""Words in the names of the place in a cache where new tokens begin, one number."""
OF_CACHES = {Part.TABLE, Part.PAGES, Part.ENDS, Part.QUERY_ENDS, Part.KEY_ENDS, Part.PAGE_ENDS}
"""What no function has but one that serves, or packs its documents."""
INPUTS = (
    (Part.QUERY, Part.KEY, Part.VALUE),
    (Part.QUERY, Part.PAIR),
    (Part.TRIPLE,),
)


def words_in(name: str) -> set[str]:
    """The words of a name in lower case, those of compounds apart."""
    lower = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    for spelling, apart in COMPOUNDS:
        lower = re.sub(spelling, apart, lower)
    return set(re.split(r"[_\d]+", lower)) - {""}


def part_of(name: str) -> Part | None:
    """What a parameter of this name takes, as far as the name alone states it."""
    words = words_in(name)
    return _input_of(words) or _place_of(words)


def _input_of(words: set[str]) -> Part | None:
    rest = words - AROUND
    if rest in ({"kv"}, {"key", "value"}, {"k", "v"}) and not words & {"block", "page"}:
        return Part.PAIR
    if rest in ({"qkv"}, {"q", "k", "v"}):
        return Part.TRIPLE
    for part, own in ((Part.QUERY, OF_QUERY), (Part.KEY, OF_KEY), (Part.VALUE, OF_VALUE)):
        if rest and rest <= own:
            return part
    return (
        Part.OUTPUT if words & {"out", "output", "o"} and words <= {"out", "output", "o", "buffer", "tensor"} else None
    )


def _place_of(words: set[str]) -> Part | None:
    of_pages = bool(words & {"block", "blocks", "page", "pages", "paged"})
    if of_pages and "last" in words:
        return Part.LAST_PAGE
    if of_pages and words & {"table", "tables"}:
        return Part.TABLE
    if words & CUMULATIVE or {"start", "loc"} <= words:
        return _whose(words, Part.QUERY_ENDS, Part.KEY_ENDS, Part.ENDS)
    if words & MOST and words & (COUNTED | DOCUMENTS | OF_QUERY | OF_KEYS):
        return None if of_pages else _whose(words, Part.LONGEST_QUERY, Part.LONGEST_KEY, Part.LONGEST)
    if words in ONE_PLACE:
        return None
    if words & INDICES and (of_pages or words & {"kv", "cache"} or words == {"indices"}):
        return Part.PAGES
    if words & DOCUMENTS and words & {"id", "ids"}:
        return _whose(words, Part.QUERY_SEGMENTS, Part.KEY_SEGMENTS, Part.SEGMENTS)
    if of_pages and words & {"size", "len", "length"}:
        return Part.PAGE_SIZE
    if words & COUNTED and not words & NEW and not of_pages:
        return _whose(words, Part.QUERY_LENGTHS, Part.LENGTHS, Part.LENGTHS)
    return None


def _whose(words: set[str], of_query: Part, of_key: Part, of_both: Part) -> Part:
    if words & OF_QUERY:
        return of_query
    return of_key if words & OF_KEYS else of_both


def parts_of(parameters: Iterable[inspect.Parameter]) -> dict[str, Part]:
    """What each parameter takes, by its name and by what else there is; without those that have no part."""
    named = {p.name: p for p in parameters if not is_variadic(p)}
    found = {name: part for name in named if (part := part_of(name)) is not None}
    found = _with_new_keys(found)
    kinds = set(found.values())
    if Part.PAGES in kinds and not kinds & {Part.KEY_ENDS, Part.ENDS}:
        found = {name: Part.TABLE if part is Part.PAGES else part for name, part in found.items()}
    elif Part.PAGES in kinds:
        found = {n: Part.PAGE_ENDS if p in (Part.KEY_ENDS, Part.ENDS) else p for n, p in found.items()}
    paged = {Part.TABLE, Part.PAGES} & {*found.values()}
    return {
        name: part
        for name, part in found.items()
        if (paged or part is not Part.PAGE_SIZE) and (required(named[name]) or part is not Part.OUTPUT)
    }


def _with_new_keys(found: Mapping[str, Part]) -> dict[str, Part]:
    """Keys next to those of a cache, and those of a name that says so, are new ones."""
    made = dict(found)
    for old, new in ((Part.KEY, Part.NEW_KEY), (Part.VALUE, Part.NEW_VALUE)):
        names = [name for name, part in found.items() if part is old]
        kept = [name for name in names if words_in(name) & STORED and not words_in(name) & NEW]
        pair = Part.PAIR in found.values()
        others = [name for name in names if name not in kept] if kept or pair else []
        made |= dict.fromkeys(others, new)
    return made


def inputs_in(parts: Mapping[str, Part]) -> tuple[Part, ...]:
    """Its inputs, if it has each of them once; else nothing."""
    given = [part for part in parts.values() if any(part in each for each in INPUTS)]
    return next((each for each in INPUTS if sorted(given) == sorted(each)), ())


def serves(parts: Mapping[str, Part]) -> bool:
    """Whether its names alone state that it serves: it reads a cache or pages, or documents one after another."""
    return bool(inputs_in(parts)) and (_stored(parts) or bool(OF_CACHES & {*parts.values()}))


def reads_cache(parts: Mapping[str, Part]) -> bool:
    """Whether its keys are those of a cache, by their names or as they lie in pages: its queries stand at their end."""
    return _stored(parts) or bool({Part.TABLE, Part.PAGES, Part.NEW_KEY} & {*parts.values()})


def _stored(parts: Mapping[str, Part]) -> bool:
    """Whether the names of its keys state that they are stored."""
    return any(part in (Part.KEY, Part.PAIR) and bool(words_in(name) & STORED) for name, part in parts.items())
