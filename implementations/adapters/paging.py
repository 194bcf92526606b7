"""Pages: keys and values as servers store them, in a pool of pages that a table of each sample names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.spec.cases import Case, Padding
from attention_conformance.spec.optional import optional

torch = optional("torch")

OPTIONS = frozenset({"block_table", "page_size", "valid_lens", "cache_batch_idx", "cache_rows"})
"""Options that say where keys and values lie, and how many there are."""


def lengths_of_samples(case: Case) -> Case:
    """The fit of what takes a length for each sample, and none for each query."""
    return case if case.padding is not Padding.QUERY_LENGTHS else replace(case, padding=Padding.LENGTHS)


@dataclass(frozen=True)
class TakenPages:
    """The fit of what takes pages of a multiple of so many tokens, and a length for each sample."""

    multiple: int = 1

    def __call__(self, case: Case) -> Case | Unsupported:
        """With as many pages as before, which may hold more."""
        case, size = lengths_of_samples(case), case.extension.page_size
        if size and case.extension.has_lengths:
            return Unsupported("has pages for each sample, and none for a document of one")
        taken = -(-size // self.multiple) * self.multiple
        if taken == size:
            return case
        return case.sized(key_length=case.sizes.key_length * taken // size).extended(page_size=taken)


@dataclass(frozen=True, eq=False)
class Pages:
    """The keys and values of all samples, of the kind of the arrays that they were made of.

    Attributes:
        key, value: (pages, page_size, Hk, d), contiguous.
        table: (B, pages of a sample) int32: the numbers of its pages, in the order of its keys.
        lengths: (B,) int32: how many keys each sample has.
    """

    key: Any
    value: Any
    table: Any
    lengths: Any


def in_pages(key: Any, value: Any, options: Mapping[str, Any]) -> Pages:
    """The keys and values (B, Hk, Lk, d), of which the first `valid_lens` count, in the pages that `block_table` names.

    Behind them lie the others of the sample; all other places, pages that no table names among them, hold what another
    sequence has left there: the last token of the last sample, negated. Without a table each sample has one page,
    which it fills.

    Raises:
        ValueError: key and value do not fit together.
    """
    if tuple(key.shape[:3]) != tuple(value.shape[:3]):
        raise ValueError(f"key and value need one batch, length and number of heads: got {key.shape} and {value.shape}")
    batch, length = key.shape[0], key.shape[2]
    size = int(options.get("page_size") or max(1, length))
    given, lengths = options.get("block_table"), options.get("valid_lens")
    own = np.arange(batch * -(-length // size)).reshape(batch, -(-length // size))
    table = own if given is None else np.array(given.tolist(), np.int64).reshape(batch, -1)
    counts = np.full(batch, length) if lengths is None else np.array(lengths.tolist(), np.int64)
    of_kind = _integers_like(key)
    return Pages(_pool(key, table, size), _pool(value, table, size), of_kind(table), of_kind(counts))


def in_rows(key: Any, value: Any, options: Mapping[str, Any]) -> Pages:
    """The same in rows of a cache, (rows, Lk, Hk, d), that `cache_batch_idx` names: a row is a page that holds all.

    Raises:
        ValueError: key and value do not fit together.
    """
    table = np.array(options["cache_batch_idx"].tolist(), np.int64)[:, None]
    named = _integers_like(key)(table)
    return in_pages(key, value, {**options, "block_table": named, "page_size": 0})


def _pool(rows: Any, table: Any, size: int) -> Any:
    """(pages, size, Hk, d): one page more than the table names."""
    batch, heads, length, width = rows.shape
    count, pages = table.shape[1], int(table.max(initial=-1)) + 2
    if not rows.size if isinstance(rows, np.ndarray) else not rows.numel():
        return _empty(rows, (pages, size, heads, width))
    left = -rows[-1:, :, -1:]
    pool, padded = _empty(rows, (pages, size, heads, width)), _empty(rows, (batch, heads, count * size, width))
    pool[...] = left.swapaxes(1, 2)
    padded[...] = left
    padded[:, :, :length] = rows
    in_parts = padded.reshape(batch, heads, count, size, width).swapaxes(1, 2).swapaxes(2, 3)
    pool[table.reshape(-1)] = in_parts.reshape(-1, size, heads, width)
    return pool


def _empty(rows: Any, shape: tuple[int, ...]) -> Any:
    """Zeros of the kind of the rows."""
    return rows.new_zeros(shape) if torch and isinstance(rows, torch.Tensor) else np.zeros(shape, rows.dtype)


def _integers_like(rows: Any) -> Callable[[Any], Any]:
    """Makes int32 of an array, on the device of the rows where these are a tensor."""
    if torch and isinstance(rows, torch.Tensor):
        return lambda array: torch.from_numpy(array.astype(np.int32)).to(rows.device)
    return lambda array: array.astype(np.int32)


@dataclass(frozen=True, eq=False)
class PagedCall:
    """A function of pages as one of query, key and value (B, H, L, d).

    Attributes:
        function: called as function(query, key_cache, value_cache, block_table, context_lens, **options) with the query
            (B, Lq, H, d_k); gives (B, Lq, H, d_v). Where keys lie in rows of a cache, these are the pools, the table is
            None, and `cache_batch_idx` (B,) int32 is an option.
    """

    function: Callable[..., Any]

    def __call__(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        """(B, H, Lq, d_v)."""
        return self.bound_call(query, key, value, **options)()

    def bound_call(self, query: Any, key: Any, value: Any, **options: Any) -> Callable[[], Any]:
        """The same call with the pages made."""
        if query.shape[0] != key.shape[0]:
            raise ValueError(f"{query.shape[0]} samples of query, and {key.shape[0]} of key and value")
        in_rows_of_a_cache = "cache_batch_idx" in options
        pages = (in_rows if in_rows_of_a_cache else in_pages)(key, value, options)
        others = {name: o for name, o in options.items() if name not in OPTIONS and name != "enable_gqa"}
        table: Any = pages.table
        if in_rows_of_a_cache:
            others["cache_batch_idx"], table = pages.table[:, 0], None
        call = partial(self.function, query.swapaxes(1, 2), pages.key, pages.value, table, pages.lengths, **others)
        return lambda: call().swapaxes(1, 2)
