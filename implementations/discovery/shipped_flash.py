"""The functions of FlashAttention, and of the packages that have taken over their signatures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.paging import OPTIONS as OPTIONS_OF_PAGES
from attention_conformance.implementations.adapters.paging import in_pages, lengths_of_samples
from attention_conformance.implementations.discovery.shipped import (
    Interface,
    Shipped,
    called_tokens_first,
    first,
    joined,
    tokens_first,
)
from attention_conformance.spec.features import Feature

OPTIONS = {
    "is_causal": "causal",
    "scale": "softmax_scale",
    "dropout_p": "dropout_p",
    "window_size": "window_size",
    "softcap": "softcap",
    "alibi_slopes": "alibi_slopes",
}
SETTINGS = {"causal-alignment": "bottom-right", "empty-row": "zeros"}
"""The last query stands at the last key; rows without keys get zeros."""
PAGES = {"valid_lens": "cache_seqlens", "block_table": "block_table", "page_size": "block_table"}
DOCUMENTS = {"cu_seqlens_q": "cu_seqlens_q", "cu_seqlens_k": "cu_seqlens_k"}
ROOM = 8
"""Positions that a cache begins with where it grows; they are doubled when they are full."""


def batched(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(B, L, H, d) each."""
    output, extras = called_tokens_first(shipped, (query, key, value), _keywords(shipped, options))
    return joined(output, *extras[:1])


def cached(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(B, Lq, H, d), and a cache (B, Lk, H, d), or pages of one (pages, page_size, H, d), with lengths of samples."""
    keywords = _keywords(shipped, {name: given for name, given in options.items() if name not in OPTIONS_OF_PAGES})
    if not OPTIONS_OF_PAGES & options.keys():
        output, extras = called_tokens_first(shipped, (query, key, value), keywords)
        return joined(output, *extras[:1])
    pages = in_pages(key, value, options)
    table = {"block_table": pages.table} if "block_table" in options else {}
    pools = (pages.key, pages.value) if table else (tokens_first(key), tokens_first(value))
    answer = shipped.function(tokens_first(query), *pools, cache_seqlens=pages.lengths, **table, **keywords)
    output, extras = first(answer)
    return joined(output.swapaxes(1, 2), *extras[:1])


def kv_packed(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(B, Lq, H, d), and (B, Lk, 2, H, d) for key and value."""
    pair = torch.stack([x.swapaxes(1, 2) for x in (key, value)], 2)
    output, extras = first(shipped.function(tokens_first(query), pair, **_keywords(shipped, options)))
    return joined(output.swapaxes(1, 2), *extras[:1])


def qkv_packed(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(B, L, 3, H, d) for all three."""
    packed = torch.stack([x.swapaxes(1, 2) for x in (query, key, value)], 2)
    output, extras = first(shipped.function(packed, **_keywords(shipped, options)))
    return joined(output.swapaxes(1, 2), *extras[:1])


def packed(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(total, H, d) each, one document after another; where a problem has none, each sample is one."""
    batch, _, queries, _ = query.shape
    places = {
        "cu_seqlens_q": _ends(options.get("cu_seqlens_q"), query),
        "cu_seqlens_k": _ends(options.get("cu_seqlens_k"), key),
    }
    longest = {f"max_seqlen_{name[-1]}": int(ends.diff().max()) for name, ends in places.items()}
    keywords = {**_keywords(shipped, options), **places, **longest}
    output, extras = first(shipped.function(*(x.swapaxes(1, 2).flatten(0, 1) for x in (query, key, value)), **keywords))
    logs = (log.unflatten(1, (batch, queries)).swapaxes(0, 1) for log in extras[:1])
    return joined(output.unflatten(0, (batch, queries)).swapaxes(1, 2), *logs)


def packed_by_torch(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(total, H, d) each; the causal flag is a window without keys to the right."""
    given = dict(options)
    if given.pop("is_causal", False):
        given["window_size"] = (given.get("window_size", (-1, -1))[0], 0)
    places = {f"cu_seq_{name}": _ends(given.get(f"cu_seqlens_{name}"), x) for name, x in (("q", query), ("k", key))}
    longest = {f"max_{name[-1]}": int(ends.diff().max()) for name, ends in places.items()}
    grouped = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    rows = (x.swapaxes(1, 2).flatten(0, 1) for x in (query, key, value))
    output, _ = first(shipped.function(*rows, **_keywords(shipped, given), **places, **longest, **grouped))
    return output.unflatten(0, (query.shape[0], query.shape[2])).swapaxes(1, 2)


def feeding(shipped: Shipped) -> Callable[[Any], Any]:
    """What feeds a sequence through its cache: the function writes new keys and values behind those that are held."""

    def start(stream: Any) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        keywords, held = _keywords(shipped, {n: o for n, o in stream.options.items() if n in shipped.own}), 0
        sized = replace(stream, room=stream.room or ROOM)
        stored = [sized.storage(width).swapaxes(1, 2).contiguous() for width in (stream.d_k, stream.d_v)]

        def feed(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            nonlocal stored, held
            while stored[0].shape[1] < held + key.shape[-2]:
                stored = [torch.cat([rows, torch.full_like(rows, torch.nan)], 1) for rows in stored]
            lengths = torch.full((stream.batch,), held, dtype=torch.int32, device=query.device)
            new = {"k": tokens_first(key), "v": tokens_first(value), "cache_seqlens": lengths}
            output, _ = first(shipped.function(tokens_first(query), *stored, **new, **keywords))
            held += key.shape[-2]
            fed: Tensor = output.swapaxes(1, 2)
            return fed

        return feed

    return start


def _keywords(shipped: Shipped, options: dict[str, Any]) -> dict[str, Any]:
    """With slopes in float32 at least, as they are documented."""
    given = shipped.keywords({name: option for name, option in options.items() if name not in DOCUMENTS})
    slopes = given.get("alibi_slopes")
    if slopes is not None and slopes.dtype is not torch.float64:
        given["alibi_slopes"] = slopes.float()
    return given


def _ends(of_sample: Tensor | None, x: Tensor) -> Tensor:
    """Cumulative lengths of the documents of all samples, (documents + 1,) int32."""
    batch, _, length, _ = x.shape
    begin = torch.tensor([0, length], dtype=torch.int32, device=x.device) if of_sample is None else of_sample
    starts = torch.arange(batch, dtype=torch.int32, device=x.device)[:, None] * length + begin[None, 1:]
    return torch.cat([begin[:1], starts.flatten()]).to(torch.int32)


FLASH = (
    Interface(
        "flash_attn_varlen_func",
        frozenset({"q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"}),
        packed,
        OPTIONS | DOCUMENTS,
        SETTINGS,
    ),
    Interface(
        "torch.nn.attention.varlen.varlen_attn",
        frozenset({"query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k", "window_size"}),
        packed_by_torch,
        {"is_causal": "window_size", "window_size": "window_size", "scale": "scale"}
        | {"cu_seqlens_q": "cu_seq_q", "cu_seqlens_k": "cu_seq_k"},
        SETTINGS,
        lacks=frozenset({Feature.LOG_SUM_EXP}),
    ),
    Interface(
        "flash_attn_with_kvcache",
        frozenset({"q", "k_cache", "v_cache", "cache_seqlens", "softmax_scale", "causal"}),
        cached,  # keys and values are a cache, and there are no new ones
        OPTIONS | PAGES,
        SETTINGS | {"causal-alignment": "bottom-right-real"},
        fit=lengths_of_samples,
        start=feeding,
    ),
    Interface(
        "flash_attn_qkvpacked_func",
        frozenset({"qkv", "softmax_scale", "causal"}),
        qkv_packed,
        OPTIONS,
        SETTINGS,
        lacks=frozenset({Feature.CROSS, Feature.GROUPED, Feature.VALUE_WIDTH}),
    ),
    Interface(
        "flash_attn_kvpacked_func",
        frozenset({"q", "kv", "softmax_scale", "causal"}),
        kv_packed,
        OPTIONS,
        SETTINGS,
        lacks=frozenset({Feature.VALUE_WIDTH}),
    ),
    Interface(
        "flash_attn_func",
        frozenset({"q", "k", "v", "softmax_scale", "causal", "window_size"}),
        batched,
        OPTIONS,
        SETTINGS,
        either_order=True,
    ),
)
"""Those with more parameters first."""
