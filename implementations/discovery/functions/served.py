"""Serving kernels as functions of query, key and value (B, H, L, d): caches, pages and packed documents are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.adapters.paging import Pages, TakenPages, in_pages, lengths_of_samples
from attention_conformance.implementations.api.contract import Claims, Fit, Unsupported
from attention_conformance.implementations.discovery.functions.given_sizes import BLOCK, Count
from attention_conformance.implementations.discovery.functions.serving_names import Part, reads_cache
from attention_conformance.implementations.discovery.functions.stored_axes import (
    OP,
    Storage,
    in_vectors,
    laid,
    like,
    permuted,
    pooled,
    restored,
    stacked,
)
from attention_conformance.implementations.discovery.signatures import required, signature_of, window_names
from attention_conformance.implementations.discovery.vocabulary import KNOWN_NAMES, OPTIONS
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, Packing
from attention_conformance.spec.masks import real_keys

PASSED = ("is_causal", "scale", "window_size", "softcap", "alibi_slopes", "sinks")
"""Options that are passed on as they are."""
RENAMED = {"is_causal": "causal"}
"""The names under which they are shown, where the suite's own is that of a published interface."""
INFERENCE = frozenset({Feature.GRADIENTS, Feature.MASK_GRADIENT})
"""What no cache has."""


@dataclass(frozen=True)
class Served:
    """A serving kernel.

    Attributes:
        kernel: what is called.
        parts: what its parameters take.
        sizes: its parameters that count something of the inputs.
        storage: how it has its arrays.
        at_end: whether its queries stand at the last keys of their sample.
        appending: whether the last keys of each sample are given as new ones, where they need not be.
        partition: its parameter that counts the keys of a part that is answered apart, where it takes fewer than usual.
        parted: whether it is given as many as a page has.
    """

    kernel: Callable[..., Any]
    parts: Mapping[str, Part]
    sizes: Mapping[str, Count]
    storage: Storage
    at_end: bool = False
    appending: bool = False
    partition: str = ""
    parted: bool = False

    @property
    def own(self) -> inspect.Signature:
        """The signature of the kernel."""
        return signature_of(self.kernel)

    @property
    def passed(self) -> dict[str, str]:
        """Its own names for the options that are passed on, by those that it shows."""
        own = [name for name in self.own.parameters if name not in self.parts]
        known = {name: KNOWN_NAMES[name] for name in own if KNOWN_NAMES.get(name) in PASSED}
        windows = {name: name for name in window_names(self.own) if name in own and name not in known}
        return {RENAMED.get(option, option): name for name, option in known.items()} | windows

    @property
    def __signature__(self) -> inspect.Signature:  # what inspect.signature reads
        inputs = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("query", "key", "value")
        ]
        shown = {name: self.own.parameters[own].default for name, own in self.passed.items()}
        shown |= dict.fromkeys(self._taken(), None)
        options = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=d) for n, d in shown.items()]
        return inspect.Signature([*inputs, *options])

    def _needed(self, width: int) -> dict[str, Any]:
        """What its other options are given that it has to be given."""
        needed = [(shown, name) for shown, name in self.passed.items() if required(self.own.parameters[name])]
        usual = {"scale": max(1, width) ** -0.5, "causal": False}
        known = [(shown, name) for shown, name in needed if name in KNOWN_NAMES]
        return {name: usual.get(shown, OPTIONS[KNOWN_NAMES[name]].neutral) for shown, name in known}

    def _taken(self) -> list[str]:
        """The suite's names of what is made of a problem."""
        kinds = {*self.parts.values()}
        lengths = "valid_lens" if self.cached or self.ragged else "lengths"
        counted = self.paged or (kinds & {Part.LENGTHS} and not self.packed) or (self.ragged and Part.ENDS not in kinds)
        ends = ["cu_seqlens_q", "cu_seqlens_k"] if self.ragged else []
        ids = {Part.SEGMENTS: "segment_ids", Part.QUERY_SEGMENTS: "query_segments", Part.KEY_SEGMENTS: "key_segments"}
        pages = ["block_table", "page_size"] if self.paged else []
        return [*([lengths] if counted else []), *ends, *pages, *(name for part, name in ids.items() if part in kinds)]

    @property
    def paged(self) -> bool:
        """Whether its keys lie in pages."""
        return bool({"P", "N"} & {*self.storage.key})

    @property
    def packed(self) -> bool:
        """Whether its queries lie one document after another."""
        return "T" in self.storage.query

    @property
    def ragged(self) -> bool:
        """Whether its keys do."""
        return "T" in self.storage.key

    @property
    def cached(self) -> bool:
        """Whether it reads a cache."""
        return reads_cache(self.parts)

    @property
    def lengths(self) -> list[str]:
        """Its parameters that are the numbers of keys."""
        return [name for name, part in self.parts.items() if part is Part.LENGTHS]

    @property
    def settings(self) -> dict[str, str]:
        """The conventions that follow."""
        return {"causal-alignment": "bottom-right-real"} if self.at_end else {}

    @property
    def about(self) -> str:
        """For a note."""
        pages = f"; pages of a multiple of {self.storage.pages} tokens" if self.storage.pages > 1 else ""
        return f"a serving kernel: {self.storage.about}{pages}"

    def claimed(self, claims: Claims) -> Claims:
        """The claims, without what its storage cannot have."""
        features = claims.features - (INFERENCE if self.cached else set())
        stacked = "2" in self.storage.key or "3" in self.storage.key
        features -= {Feature.VALUE_WIDTH} if stacked else set()
        features -= {Feature.GROUPED, Feature.CROSS} if "3" in self.storage.key else set()
        return replace(claims, features=features, fit=partial(fit_served, self, claims.fit))

    def other_ways(self) -> dict[str, Served]:
        """The same by other calls, by what they are."""
        appends = Part.NEW_KEY in self.parts.values() and not self.appending
        ways = {"with the last keys of each sample as new ones": replace(self, appending=True)} if appends else {}
        parted = {f"with a small {self.partition}": replace(self, parted=True)} if self.partition else {}
        return ways | parted

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """The kernel's answer, (B, H, Lq, d_v), and perhaps its log-sum-exps, (B, H, Lq)."""
        if self.paged and not query.shape[0] == key.shape[0] == value.shape[0]:
            raise ValueError(f"{query.shape[0]} samples of query, and {key.shape[0]} of key and value")
        return (request := Request(self, query, key, value, options)).restored(self.answer(request))

    def answer(self, request: Request) -> Any:
        """The kernel's answer as it comes."""
        options = request.options
        own = {name: options[shown] for shown, name in self.passed.items() if options.get(shown) is not None}
        own = self._needed(request.query.shape[-1]) | own
        slopes: Any = own.get("alibi_slopes")
        if self.packed and getattr(slopes, "ndim", 1) > 1:
            own["alibi_slopes"] = slopes[_samples_of(request.query_ends, len(slopes))]
        found = {part: request.given(part) for part in {*self.parts.values()}}
        given = {name: found[part] for name, part in self.parts.items() if found[part] is not None}
        given |= {name: request.size(count) for name, count in self.sizes.items()}
        given |= {self.partition: request.part} if self.parted else {}
        answer = _called(self.kernel, self.own, given | own)
        room = found.get(Part.OUTPUT)
        return room if answer is None and room is not None else answer


def _samples_of(ends: Any, samples: int) -> NDArray[np.int64]:
    """The sample of each document, of which each one has as many."""
    return np.repeat(np.arange(samples), (len(ends) - 1) // samples)


def _called(kernel: Callable[..., Any], own: inspect.Signature, given: Mapping[str, Any]) -> Any:
    alone = [name for name, each in own.parameters.items() if each.kind is each.POSITIONAL_ONLY]
    first = [given[name] for name in alone if name in given]
    return kernel(*first, **{name: each for name, each in given.items() if name not in alone})


@dataclass(frozen=True, eq=False)
class Request:
    """What a kernel is given for one problem."""

    served: Served
    query: Any
    key: Any
    value: Any
    options: Mapping[str, Any]

    def given(self, part: Part) -> Any:
        """What a parameter is given; None: nothing."""
        return self._arrays(part) if part in ARRAYS else self._numbers(part)

    def _arrays(self, part: Part) -> Any:
        storage = self.served.storage
        if part is Part.QUERY:
            return self._tokens(self.query, storage.query, self.query_ends)
        if part is Part.OUTPUT:
            return self._room()
        if part in (Part.NEW_KEY, Part.NEW_VALUE):
            return self._new(part) if self.served.appending else None
        key, value = self.stored
        query = self._tokens(self.query, storage.query, self.query_ends) if part is Part.TRIPLE else None
        inputs = {Part.KEY: [key], Part.VALUE: [value], Part.PAIR: [key, value]}.get(part, [query, key, value])
        at = next((place for place, axis in enumerate(storage.key) if axis.isdigit()), None)
        return inputs[0] if at is None else stacked(inputs, at)

    @cached_property
    def stored(self) -> tuple[Any, Any]:
        """Keys and values as they are stored."""
        storage = self.served.storage
        axes = "".join(axis for axis in storage.key if not axis.isdigit())
        if self.served.paged:
            pools = ((self.pages.key, axes), (self.pages.value, storage.values or axes))
            key, value = (pooled(like(pool, self.key), own) for pool, own in pools)
        else:
            key, value = (self._tokens(self._before(rows), axes, self.key_ends) for rows in (self.key, self.value))
        return key, value

    @cached_property
    def pages(self) -> Pages:
        """The pages of all samples."""
        step, length = self.served.storage.pages, max(1, self.key.shape[2])
        taken = min(BLOCK, length) if self.served.parted else length
        size = int(self.options.get("page_size") or 0) or -(-taken // step) * step
        placed = {"block_table": self.options.get("block_table"), "page_size": size}
        given = {**placed, "valid_lens": self.counts}
        return in_pages(self._before(self.key), self._before(self.value), given)

    @property
    def part(self) -> int:
        """How many keys are answered apart: those of a page, which has to be no part of two."""
        return int(self.pages.key.shape[1]) if self.served.paged else BLOCK

    @cached_property
    def counts(self) -> Any:
        """(B,): the number of keys of each sample."""
        given = self.options.get("valid_lens", self.options.get("lengths"))
        return np.full(len(self.key), self.key.shape[2]) if given is None else np.array(given.tolist(), np.int64)

    @property
    def held(self) -> Any:
        """(B,): how many of them stand in the cache before the call."""
        return self.counts - (self._most_new() if self.served.appending else 0)

    def _most_new(self) -> int:
        return min(int(self.query.shape[2]), int(self.counts.min(initial=self.key.shape[2])))

    def _new(self, part: Part) -> Any:
        rows = self.key if part is Part.NEW_KEY else self.value
        at = self.held[:, None] + np.arange(self._most_new())
        new = rows.swapaxes(1, 2)[np.arange(len(rows))[:, None], at].swapaxes(1, 2)
        return self._tokens(new, self.served.storage.query, None)

    def _before(self, rows: Any) -> Any:
        """What is stored before the call: others where new ones are to be written."""
        if not self.served.appending:
            return rows
        at = np.arange(rows.shape[2])
        new = (at >= self.held[:, None]) & (at < self.counts[:, None])
        sign = np.where(new, -1.0, 1.0)[:, None, :, None]
        return rows * like(sign, rows)

    @cached_property
    def query_ends(self) -> Any:
        """Where the documents of all samples end, (documents + 1,)."""
        return self._ends("cu_seqlens_q", self.query)

    @cached_property
    def key_ends(self) -> Any:
        """The same for keys; of samples that have lengths only the real tokens are there."""
        if self.counts.tolist() != [self.key.shape[2]] * len(self.key):
            return np.concatenate([[0], np.cumsum(self.counts)])
        return self._ends("cu_seqlens_k", self.key)

    def _ends(self, name: str, rows: Any) -> Any:
        batch, length = rows.shape[0], rows.shape[2]
        given = self.options.get(name)
        of_sample = np.array([0, length] if given is None else given.tolist(), np.int64)
        return np.concatenate([of_sample[:1], (np.arange(batch)[:, None] * length + of_sample[1:]).reshape(-1)])

    def _tokens(self, rows: Any, axes: str, ends: Any) -> Any:
        if "T" not in axes or ends is None or ends[-1] == rows.shape[0] * rows.shape[2]:
            return laid(rows, axes)
        real = np.flatnonzero((np.arange(rows.shape[2]) < self.counts[:, None]).reshape(-1))
        return permuted(laid(rows, "THD")[real], "THD", axes)

    def _room(self) -> Any:
        shape, query = (*self.query.shape[:3], self.value.shape[3]), self.query
        empty = query.new_zeros(shape) if hasattr(query, "new_zeros") else np.zeros(shape, query.dtype)
        return laid(empty, self.served.storage.output or self.served.storage.query)

    def _numbers(self, part: Part) -> Any:
        queries, keys = np.diff(self.query_ends), np.diff(self.key_ends)
        if part in (Part.LONGEST, Part.LONGEST_QUERY, Part.LONGEST_KEY):
            of_queries, of_keys = int(queries.max(initial=0)), int(keys.max(initial=0))
            either = of_keys if self.served.cached else max(of_queries, of_keys)
            return {Part.LONGEST_QUERY: of_queries, Part.LONGEST_KEY: of_keys}.get(part, either)
        if part in (Part.SEGMENTS, Part.QUERY_SEGMENTS, Part.KEY_SEGMENTS):
            return self._segments(part)
        made = self._of_pages(part) if self.served.paged else None
        if made is None:
            counts = keys if self.served.ragged else self.held
            made = {
                Part.LENGTHS: counts,
                Part.QUERY_LENGTHS: queries,
                Part.QUERY_ENDS: self.query_ends,
                Part.ENDS: self.query_ends,
                Part.KEY_ENDS: self.key_ends,
            }.get(part)
        return made if made is None or isinstance(made, int) else self._integers(made)

    def _of_pages(self, part: Part) -> Any:
        size, held = int(self.pages.key.shape[1]), self.held
        table = np.array(self.pages.table.tolist(), np.int64).reshape(len(self.key), self.pages.table.shape[1])
        if "N" in self.served.storage.key:  # each token is a page
            places = table[:, :, None] * size + np.arange(size)
            table, size = places.reshape(len(table), size * table.shape[1]), 1
        counts = -(-self.counts // size)
        chosen = [row[:count] for row, count in zip(table, counts, strict=True)]
        return {
            Part.TABLE: table,
            Part.PAGE_SIZE: size,
            Part.PAGES: np.concatenate([np.zeros(0, np.int64), *chosen]),
            Part.PAGE_ENDS: np.concatenate([[0], np.cumsum(counts)]),
            Part.LAST_PAGE: self.counts - np.maximum(counts - 1, 0) * size,
            Part.KEY_ENDS: np.concatenate([[0], np.cumsum(held)]),
        }.get(part)

    def _segments(self, part: Part) -> Any:
        own = {Part.SEGMENTS: "segment_ids", Part.QUERY_SEGMENTS: "query_segments", Part.KEY_SEGMENTS: "key_segments"}
        given, rows = self.options.get(own[part]), self.key if part is Part.KEY_SEGMENTS else self.query
        shape = (rows.shape[0], rows.shape[2])
        return given if given is not None else self._integers(np.zeros(shape, np.int64))

    def _integers(self, numbers: Any) -> Any:
        kind = self.served.storage.integers
        if kind == "list":
            return numbers.tolist()
        return like(numbers.astype(kind), self.query)

    def size(self, count: Count) -> int:
        """What a parameter counts."""
        heads, key_heads, width = int(self.query.shape[1]), int(self.key.shape[1]), int(self.query.shape[3])
        return {
            Count.HEADS: heads,
            Count.KEY_HEADS: key_heads,
            Count.SHARING: heads // max(1, key_heads),
            Count.WIDTH: width,
            Count.ALL_WIDTHS: heads * width,
            Count.TOKENS: int(self.query.shape[2]),
            Count.SAMPLES: int(self.query.shape[0]),
            Count.BLOCK: BLOCK,
        }[count]

    def restored(self, answer: Any) -> Any:
        """Its output as (B, H, Lq, d_v), and its log-sum-exps as (B, H, Lq)."""
        storage, sizes = self.served.storage, dict(zip(OP, (*self.query.shape[:3], self.value.shape[3]), strict=True))
        first, *others = answer if isinstance(answer, tuple | list) else (answer,)
        output = restored(first, storage.output or storage.query, sizes)
        logs = [restored(others[0], storage.logs, {**sizes, "D": 1})[..., 0]] if others and storage.logs else []
        return (output, *logs) if logs else output


ARRAYS = {Part.QUERY, Part.KEY, Part.VALUE, Part.PAIR, Part.TRIPLE, Part.NEW_KEY, Part.NEW_VALUE, Part.OUTPUT}


def fit_served(served: Served, fit: Fit, case: Case) -> Case | Unsupported:
    """The fit of what its storage can have."""
    fitted = fit(lengths_of_samples(case))
    if isinstance(fitted, Unsupported):
        return fitted
    fitted = in_vectors(fitted) if served.storage.vectors else fitted
    alike = not {Part.KEY_ENDS, Part.TABLE, Part.PAGES, Part.KEY_SEGMENTS} & {*served.parts.values()}
    together = {Part.ENDS, Part.SEGMENTS} & {*served.parts.values()}
    packing = fitted.extension.packing
    if together and alike and packing in (Packing.EMPTY_SEGMENT, Packing.EMPTY_DOCUMENT, Packing.IDLE_DOCUMENTS):
        return Unsupported("queries and keys are of the same documents, so that none has queries and no key")
    if together and alike:
        length = min(fitted.sizes.query_length, fitted.sizes.key_length)  # the other one may be a million
        fitted = fitted.sized(query_length=length, key_length=length)
    fitted = fitted.sized(query_length=1) if served.storage.single else fitted
    if served.appending:  # each query comes with a key
        shortest = int(real_keys(fitted).sum(-1).min(initial=fitted.sizes.key_length))
        if not shortest and fitted.sizes.query_length:
            return Unsupported("queries come with new keys, and a sample has none")
        fitted = fitted.sized(query_length=min(fitted.sizes.query_length, shortest))
    return TakenPages(served.storage.pages)(fitted) if served.paged else fitted
