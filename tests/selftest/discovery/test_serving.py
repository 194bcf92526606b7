"""Serving kernels in many styles: right ones conform, and those with a slip are caught where it shows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.candidates import wrapped
from attention_conformance.implementations.discovery.functions.serving_names import Part, part_of
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status

CLAUSES = ("scores.dot-product", "masks.valid-lens", "grouped.order", "paged.*", "packed.lengths*", "packed.segments")


def one(q: Any, k: Any, v: Any, *, causal: bool = False, ahead: int | None = None, scale: float | None = None) -> Any:
    """(Lq, H, d) with (n, Hk, d): one sample, whose last query stands at its last key; zeros without keys."""
    if not len(k):
        return q * 0
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = torch.einsum("ihd,jhd->hij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    first = len(k) - len(q) if ahead is None else ahead
    late = torch.arange(len(k)) > torch.arange(len(q))[:, None] + first
    return torch.einsum("hij,jhd->ihd", (s.masked_fill(late, -torch.inf) if causal else s).softmax(-1).nan_to_num(), v)


def decode(
    k_cache: Tensor, v_cache: Tensor, context_lens: Tensor, q: Tensor, sm_scale: float, slip: str = ""
) -> Tensor:
    """Heads first, one query of each sample, in an order of its own."""
    out = torch.zeros_like(q)
    for b, n in enumerate(context_lens.tolist()):
        n = {"short": n - 1, "stale": n + 1, "first": int(context_lens[0])}.get(slip, n)
        keys, values = (x[b, :, :n].transpose(0, 1) for x in (k_cache, v_cache))
        if slip == "heads":
            keys, values = (x.repeat(1, q.shape[1] // x.shape[1], 1) for x in (keys, values))
        out[b] = one(q[b : b + 1], keys, values, scale=sm_scale)[0]
    return out


def pages(
    query: Tensor, k_pages: Tensor, v_pages: Tensor, block_tables: Tensor, kv_lens: Tensor, causal: bool, slip: str = ""
) -> Tensor:
    """Several queries, and heads before the places of a page."""
    out = torch.zeros_like(query)
    for b, n in enumerate(kv_lens.tolist()):
        table = block_tables[b].long().clone()
        table[2:] = table[:1] if slip == "table" else table[2:]
        size = k_pages.shape[2]
        n = n // size * size or n if slip == "part" else -(-n // size) * size if slip == "whole" else n
        keys, values = (x[table].transpose(1, 2).flatten(0, 1)[:n] for x in (k_pages, v_pages))
        out[b] = one(query[b], keys, values, causal=causal, ahead=0 if slip == "corner" else None)
    return out


def into_room(
    out: Tensor,
    q: Tensor,
    kv_cache: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    kv_last_page_len: Tensor,
    num_kv_heads: int,
) -> None:
    """Keys and values in one pool, (pages, 2, page_size, Hk, d), and the answer in room that is given."""
    assert kv_cache.shape[3] == num_kv_heads
    for b, last in enumerate(kv_last_page_len.tolist()):
        own = kv_indices[kv_indptr[b] : kv_indptr[b + 1]].long()
        n = (len(own) - 1) * kv_cache.shape[2] + last if len(own) else 0
        out[b] = one(q[b : b + 1], *(kv_cache[own, role].flatten(0, 1)[:n] for role in (0, 1)))[0]


def tokens(q: Tensor, k_buffer: Tensor, v_buffer: Tensor, kv_indptr: Tensor, kv_indices: Tensor) -> Tensor:
    """A pool of tokens."""
    rows = [kv_indices[kv_indptr[b] : kv_indptr[b + 1]].long() for b in range(len(q))]
    return torch.stack([one(x[None], k_buffer[at], v_buffer[at])[0] for x, at in zip(q, rows, strict=True)])


def appending(q: Tensor, k_new: Tensor, v_new: Tensor, k_cache: Tensor, v_cache: Tensor, cache_lens: Tensor) -> Tensor:
    """Writes new keys behind those that are held."""
    out = torch.zeros_like(q)
    for b, held in enumerate(cache_lens.tolist()):
        n = held + q.shape[1]
        k_cache[b, held:n], v_cache[b, held:n] = k_new[b], v_new[b]
        out[b] = one(q[b], k_cache[b, :n], v_cache[b, :n], causal=True)
    return out


def ragged(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, causal: bool = False, slip: str = "") -> Tensor:
    """(H, total, d), queries and keys of the same documents; it has gradients."""
    rows, ends = [], offsets.tolist()
    for begin, end in zip([0, *ends[1:-1]] if slip != "first" else [0] * (len(ends) - 1), ends[1:], strict=True):
        x, *others = (each[:, begin:end].transpose(0, 1) for each in (q, k, v))
        rows.append(one(x, *others, causal=causal).transpose(0, 1)[:, -(end - begin) if slip != "first" else None :])
    return torch.cat(rows, 1)[:, : q.shape[1]] if rows else q


def of_arrays(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, causal: bool = False, slip: str = ""
) -> Any:
    """NumPy arrays of documents with lengths of their own."""
    out = np.zeros_like(q)
    ahead = (
        int(np.diff(cu_seqlens_k).max() - np.diff(cu_seqlens_q).max())
        if slip == "corner" and len(cu_seqlens_k) > 1
        else None
    )
    bounds = zip(cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:], strict=False)
    for a, b, c, d in bounds:
        out[a:b] = (
            one(*map(torch.from_numpy, (q[a:b], k[c:d], v[c:d])), causal=causal, ahead=ahead).numpy() if b > a else 0
        )
    return out


def documents(q: Tensor, k: Tensor, v: Tensor, doc_ids: Tensor, slip: str = "") -> Tensor:
    """(B, H, L, d), with an id for each token that has to be given."""
    ids = doc_ids[:1] if slip else doc_ids
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill((ids[:, None, :] != ids[..., None])[:, None], -torch.inf)
    answer: Tensor = scores.softmax(-1) @ v
    return answer


def half(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None = None) -> Tensor:
    """bfloat16 alone, and names that say nothing of a cache."""
    if q.dtype is not torch.bfloat16:
        raise TypeError("bfloat16 only")
    counts = [k.shape[1]] * len(q) if lengths is None else lengths.tolist()
    rows = [one(q[b : b + 1].float(), k[b, :n].float(), v[b, :n].float())[0] for b, n in enumerate(counts)]
    return torch.stack(rows).bfloat16() if rows else q


def slipped(function: Callable[..., Any], slip: str) -> Callable[..., Any]:
    """The function with a slip."""
    return partial(function, slip=slip)


def failing(made: Implementation, dtype: str, *clauses: str) -> set[str]:
    verdicts = run(made, clauses, (dtype,))
    assert sum(verdict.checks for verdict in verdicts)
    return {verdict.clause for verdict in verdicts if verdict.status in (Status.FAIL, Status.ERROR)}


@pytest.mark.parametrize(
    ("function", "promised"),
    [
        (decode, {Feature.VALID_LENS, Feature.GROUPED, Feature.SCALE}),
        (pages, {Feature.PAGED, Feature.VALID_LENS, Feature.GROUPED, Feature.CAUSAL}),
        (into_room, {Feature.PAGED, Feature.VALID_LENS, Feature.GROUPED}),
        (tokens, {Feature.PAGED, Feature.VALID_LENS, Feature.GROUPED}),
        (appending, {Feature.VALID_LENS, Feature.GROUPED}),
        (ragged, {Feature.CUMULATIVE_LENGTHS, Feature.CAUSAL, Feature.GRADIENTS}),
        (of_arrays, {Feature.CUMULATIVE_LENGTHS, Feature.CAUSAL, Feature.VALID_LENS}),
        (documents, {Feature.SEGMENTS, Feature.GRADIENTS}),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_a_right_one_conforms(function: Any, promised: set[Feature]) -> None:
    made = wrapped("kernel", function, {}, "cpu")
    assert {feature for feature in promised if feature not in made.claims} == set()
    assert not failing(made, "float32", *CLAUSES, "causal.alignment")


def test_one_of_half_types_conforms() -> None:
    made = wrapped("kernel", half, {}, "cpu")
    assert made.claims.dtypes == ("bfloat16",)
    assert not failing(made, "bfloat16", "masks.valid-lens", "grouped.order")


@pytest.mark.parametrize(
    ("function", "slip", "clause"),
    [
        (decode, "short", "scores.dot-product"),
        (decode, "stale", "masks.valid-lens"),
        (decode, "first", "masks.valid-lens"),
        (decode, "heads", "grouped.order"),
        (pages, "table", "paged.table"),
        (pages, "part", "paged.lengths"),
        (pages, "whole", "paged.lengths"),
        (pages, "corner", "paged.append"),
        (ragged, "first", "packed.lengths"),
        (of_arrays, "corner", "packed.lengths-positions"),
        (documents, "first", "packed.segments"),
    ],
    ids=lambda given: getattr(given, "__name__", given),
)
def test_a_slip_is_caught_where_it_shows(function: Any, slip: str, clause: str) -> None:
    assert clause in failing(wrapped("kernel", slipped(function, slip), {}, "cpu"), "float32", clause)


def test_parts_are_read_from_families_of_names() -> None:
    families = {
        Part.TABLE: ("block_tables", "page_table", "blockTable", "kv_page_table"),
        Part.LENGTHS: ("seq_lens", "cache_seqlens", "contextLens", "kvlens", "lengths"),
        Part.KEY: ("k_cache", "kcache", "key_pages", "K", "keys_cache"),
        Part.QUERY_ENDS: ("cu_seqlens_q", "qo_indptr", "query_start_loc"),
        Part.LONGEST_KEY: ("max_seqlen_k", "max_kv_len"),
        Part.SEGMENTS: ("segment_ids", "doc_ids"),
        None: ("head_dim", "dropout_p", "key_mask", "block_q", "num_kv_heads", "k_scale"),
    }
    assert {name: part_of(name) for names in families.values() for name in names} == {
        name: part for part, names in families.items() for name in names
    }
