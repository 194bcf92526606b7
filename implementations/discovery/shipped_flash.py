"""The functions of FlashAttention, and of the packages that have taken over their signatures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.paging import OPTIONS as OPTIONS_OF_PAGES
from attention_conformance.implementations.adapters.paging import TakenPages, in_pages, in_rows
from attention_conformance.implementations.adapters.quantising import OPTIONS as OPTIONS_OF_CODES
from attention_conformance.implementations.adapters.quantising import as_codes, scales_of_heads
from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.shipped import (
    Interface,
    Shipped,
    called_tokens_first,
    first,
    joined,
    tokens_first,
)
from attention_conformance.implementations.discovery.shipped_quantised import LACKS, taken_codes
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.stored_keys import ScaledBy

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
PAGES = {"valid_lens": "cache_seqlens", **dict.fromkeys(("cache_batch_idx", "cache_rows"), "cache_batch_idx")}
TABLES = dict.fromkeys(("block_table", "page_size"), ("block_table", "page_table"))
DESCALES = {"key_scale": "k_descale", "value_scale": "v_descale", "codes": "k_descale"}
OF_LENGTHS = {"block_table": "block_table", "page_size": "block_table"}
REAL = {"causal-alignment": "bottom-right-real"}
DOCUMENTS = {"cu_seqlens_q": "cu_seqlens_q", "cu_seqlens_k": "cu_seqlens_k"}
ROOM = 8
"""Positions that a cache begins with where it grows; they are doubled when they are full."""


def batched(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(B, L, H, d) each."""
    output, extras = called_tokens_first(shipped, (query, key, value), _keywords(shipped, options))
    return joined(output, *extras[:1])


def cached(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(B, Lq, H, d), and a cache (B, Lk, H, d), or pages of one (pages, page_size, H, d), with lengths of samples.

    A cache may hold codes, with a scale for each key head of each sample.
    """
    kind, placing = options.get("codes"), OPTIONS_OF_PAGES | OPTIONS_OF_CODES
    keywords = _keywords(shipped, {name: given for name, given in options.items() if name not in placing})
    if kind is not None:
        scales = scales_of_heads(query, key, options, by_sample=True)
        keywords |= {shipped.own[f"{role}_scale"]: scale for role, scale in zip(("key", "value"), scales, strict=True)}
    elif not OPTIONS_OF_PAGES & options.keys():
        output, extras = called_tokens_first(shipped, (query, key, value), keywords)
        return joined(output, *extras[:1])
    pages = (in_rows if "cache_batch_idx" in options else in_pages)(key, value, options)
    pools, places = (pages.key, pages.value), {shipped.own.get("block_table", ""): pages.table}
    if "cache_batch_idx" in options:
        places = {"cache_batch_idx": pages.table[:, 0]}
    elif "block_table" not in options:
        pools, places = (tokens_first(key), tokens_first(value)), {}
    pools = pools if kind is None else (as_codes(pools[0], kind), as_codes(pools[1], kind))
    answer = shipped.function(tokens_first(query), *pools, cache_seqlens=pages.lengths, **places, **keywords)
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
    rows, places, others = _in_a_row(shipped, (query, key, value), options, ("cu_seqlens_q", "cu_seqlens_k"))
    longest = {f"max_seqlen_{role}": most for role, most in zip("qk", places.pop("longest"), strict=True)}
    keywords = {**_keywords(shipped, others), **places, **longest}
    output, extras = first(shipped.function(*rows, **keywords))
    logs = (log.unflatten(1, (batch, queries)).swapaxes(0, 1) for log in extras[:1])
    return joined(output.unflatten(0, (batch, queries)).swapaxes(1, 2), *logs)


def _in_a_row(
    shipped: Shipped, given: tuple[Tensor, Tensor, Tensor], options: dict[str, Any], names: tuple[str, str]
) -> tuple[list[Tensor], dict[str, Any], dict[str, Any]]:
    """Inputs (total, H, d), or pools of pages, where they end, the most of one sample, and the other options.

    Of samples that have lengths only the real tokens are there. Where pages are given, `seqused_k` has the lengths if
    the function takes it, and the ends of the keys otherwise.
    """
    query, key, value = given
    others = {name: option for name, option in options.items() if name not in OPTIONS_OF_PAGES}
    ends = [_ends(options.get("cu_seqlens_q"), query), _ends(options.get("cu_seqlens_k"), key)]
    rows, places = [x.swapaxes(1, 2).flatten(0, 1) for x in given], dict[str, Any]()
    if (lengths := options.get("valid_lens")) is not None:
        real = torch.arange(key.shape[2], device=key.device) < lengths.to(key.device)[:, None]
        rows = [rows[0], *(x.swapaxes(1, 2)[real] for x in (key, value))]
        ends[1] = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(ends[0])
    places = {**dict(zip(names, ends, strict=True)), "longest": [int(each.diff().max()) for each in ends]}
    if "block_table" in options:
        pages = in_pages(key, value, options)
        rows, places["block_table"] = [rows[0], pages.key, pages.value], pages.table
        if "seqused_k" in shipped.names:
            places |= {names[1]: None, "seqused_k": pages.lengths}
    return rows, places, others


def packed_by_torch(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(total, H, d) each; the causal flag is a window without keys to the right."""
    given = dict(options)
    if given.pop("is_causal", False):
        given["window_size"] = (given.get("window_size", (-1, -1))[0], 0)
    rows, places, others = _in_a_row(shipped, (query, key, value), given, ("cu_seq_q", "cu_seq_k"))
    longest = {f"max_{role}": most for role, most in zip("qk", places.pop("longest"), strict=True)}
    grouped = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    output, _ = first(shipped.function(*rows, **_keywords(shipped, others), **places, **longest, **grouped))
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


PAGE_SIZES = (1, 8, 16, 64, 128, 256)
"""Tokens of a page of which kernels need a multiple; the smallest that one takes is that of its cases."""


def taken_pages(shipped: Shipped) -> tuple[Fit, str]:
    """By the first page size with which a call gives an output of the right shape."""
    if "block_table" not in shipped.own:
        return TakenPages(), ""
    multiple = next((size for size in PAGE_SIZES if _answers_in(shipped, size)), 1)
    return TakenPages(multiple), f"pages of a multiple of {multiple} tokens" if multiple > 1 else ""


def _answers_in(shipped: Shipped, size: int) -> bool:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    call = next(each.call for each in FLASH if each.named <= shipped.names)
    for dtype in (torch.float32, torch.bfloat16):
        query, key = (torch.ones(2, 2, length, 64, dtype=dtype, device=device) for length in (2, 2 * size))
        options = {"block_table": torch.tensor([[0, 3], [2, 1]]), "page_size": size}
        outcome = safe_call(lambda: call(shipped, query, key, key, {**options, "valid_lens": torch.tensor([size, 1])}))  # noqa: B023
        if getattr(first(outcome.value)[0], "shape", ()) == query.shape:
            return True
    return False


def taken_pages_of_codes(shipped: Shipped) -> tuple[Fit, str]:
    """The same, and by the codes that it answers, with a scale for all, for each head, and for each of each sample."""
    pages, of_pages = taken_pages(shipped)
    codes, of_codes = taken_codes(shipped, cached, (ScaledBy.TENSOR, ScaledBy.HEAD, ScaledBy.SAMPLE))

    def fit(case: Case) -> Case | Unsupported:
        fitted = pages(case)
        return fitted if isinstance(fitted, Unsupported) else codes(fitted)

    return fit, "; ".join(note for note in (of_pages, of_codes) if note)


FLASH = (
    Interface(
        "flash_attn_varlen_func",
        frozenset({"q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"}),
        packed,
        OPTIONS | DOCUMENTS | OF_LENGTHS | {"valid_lens": "cu_seqlens_k"},
        SETTINGS | REAL,
        seen_fit=taken_pages,
    ),
    Interface(
        "torch.nn.attention.varlen.varlen_attn",
        frozenset({"query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k", "window_size"}),
        packed_by_torch,
        {"is_causal": "window_size", "window_size": "window_size", "scale": "scale", "valid_lens": "cu_seq_k"}
        | {"cu_seqlens_q": "cu_seq_q", "cu_seqlens_k": "cu_seq_k", **OF_LENGTHS},
        SETTINGS | REAL,
        seen_fit=taken_pages,
        lacks=frozenset({Feature.LOG_SUM_EXP}),
    ),
    Interface(
        "flash_attn_with_kvcache over codes",
        frozenset({"q", "k_cache", "v_cache", "cache_seqlens", "k_descale", "v_descale", "softmax_scale", "causal"}),
        cached,
        OPTIONS | PAGES | DESCALES,
        SETTINGS | REAL,
        lacks=LACKS,
        spellings=TABLES,
        seen_fit=taken_pages_of_codes,
        start=feeding,
    ),
    Interface(
        "flash_attn_with_kvcache",
        frozenset({"q", "k_cache", "v_cache", "cache_seqlens", "softmax_scale", "causal"}),
        cached,  # keys and values are a cache, and there are no new ones
        OPTIONS | PAGES,
        SETTINGS | REAL,
        lacks=frozenset({Feature.GRADIENTS, Feature.MASK_GRADIENT}),  # its documentation has no backward pass
        spellings=TABLES,
        seen_fit=taken_pages,
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
