"""The functions of FlashAttention, and of the packages that have taken over their signatures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.paging import OPTIONS as OPTIONS_OF_PAGES
from attention_conformance.implementations.adapters.paging import TakenPages, in_pages
from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.shipped.shipped import (
    Interface,
    Shipped,
    called_tokens_first,
    first,
    joined,
    tokens_first,
)
from attention_conformance.implementations.discovery.shipped.shipped_kvcache import (
    DOCUMENTS,
    NEW,
    WAYS,
    cached,
    feeding,
    keywords_of,
    needed_of_cache,
    of_new_keys,
)
from attention_conformance.implementations.discovery.shipped.shipped_quantised import LACKS, taken_codes
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
OFFERS = {"alibi_slopes": Feature.ALIBI_SAMPLES}
"""Slopes are (H,) or (B, H)."""
SETTINGS = {"causal-alignment": "bottom-right", "empty-row": "zeros"}
"""The last query stands at the last key; rows without keys get zeros."""
PAGES = {"valid_lens": "cache_seqlens", **dict.fromkeys(("cache_batch_idx", "cache_rows"), "cache_batch_idx")}
TABLES = dict.fromkeys(("block_table", "page_size"), ("block_table", "page_table"))
ROTATED = {"rotary_cos": "rotary_cos", "rotary_sin": "rotary_sin"}
DESCALES = {"key_scale": "k_descale", "value_scale": "v_descale", "codes": "k_descale"}
OF_LENGTHS = {"block_table": "block_table", "page_size": "block_table"}
REAL = {"causal-alignment": "bottom-right-real"}


def batched(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(B, L, H, d) each."""
    output, extras = called_tokens_first(shipped, (query, key, value), keywords_of(shipped, options))
    return joined(output, *extras[:1])


def kv_packed(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(B, Lq, H, d), and (B, Lk, 2, H, d) for key and value."""
    pair = torch.stack([x.swapaxes(1, 2) for x in (key, value)], 2)
    output, extras = first(shipped.function(tokens_first(query), pair, **keywords_of(shipped, options)))
    return joined(output.swapaxes(1, 2), *extras[:1])


def qkv_packed(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(B, L, 3, H, d) for all three."""
    packed = torch.stack([x.swapaxes(1, 2) for x in (query, key, value)], 2)
    output, extras = first(shipped.function(packed, **keywords_of(shipped, options)))
    return joined(output.swapaxes(1, 2), *extras[:1])


def packed_in_slots(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """The same where the keys of a sample are a slot, of which `seqused_k` are used; not for pages and documents."""
    if {"block_table", "cu_seqlens_k"} & options.keys():
        return packed(shipped, query, key, value, options)
    lengths = options.get("valid_lens")
    used = torch.full((len(key),), key.shape[2]) if lengths is None else lengths
    given = {name: option for name, option in options.items() if name != "valid_lens"}
    given["seqused_k"] = used.to(key.device, torch.int32)
    return packed(replace(shipped, own={**shipped.own, "seqused_k": "seqused_k"}), query, key, value, given)


def packed(shipped: Shipped, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Any:
    """(total, H, d) each, one document after another; where a problem has none, each sample is one."""
    batch, _, queries, _ = query.shape
    rows, places, others = _in_a_row(shipped, (query, key, value), options, ("cu_seqlens_q", "cu_seqlens_k"))
    longest = {f"max_seqlen_{role}": most for role, most in zip("qk", places.pop("longest"), strict=True)}
    if (slopes := others.get("alibi_slopes")) is not None and slopes.ndim > 1:
        others["alibi_slopes"] = slopes.repeat_interleave((len(places["cu_seqlens_q"]) - 1) // batch, 0)
    keywords = {**keywords_of(shipped, others), **places, **longest}
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
    output, _ = first(shipped.function(*rows, **keywords_of(shipped, others), **places, **longest, **grouped))
    return output.unflatten(0, (query.shape[0], query.shape[2])).swapaxes(1, 2)


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


def taken_cache(shipped: Shipped) -> tuple[Fit, str]:
    """The same; what is rotated are new keys."""
    fit, note = taken_pages(shipped)
    return of_new_keys(fit, always=NEW in shipped.needs), note


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


IN_SLOTS = {"in slots of which seqused_k keys are used": (frozenset({"seqused_k"}), packed_in_slots)}
"""Another call to the same answer, and the parameter that it needs."""
FLASH = (
    Interface(
        "flash_attn_varlen_func",
        frozenset({"q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"}),
        packed,
        OPTIONS | DOCUMENTS | OF_LENGTHS | {"valid_lens": "cu_seqlens_k"},
        SETTINGS | REAL,
        offers=OFFERS,
        seen_fit=taken_pages,
        ways=IN_SLOTS,
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
        offers=OFFERS,
        lacks=LACKS,
        spellings=TABLES,
        seen_fit=taken_pages_of_codes,
        start=feeding,
    ),
    Interface(
        "flash_attn_with_kvcache",
        frozenset({"q", "k_cache", "v_cache", "cache_seqlens", "softmax_scale", "causal"}),
        cached,
        OPTIONS | PAGES | ROTATED,
        SETTINGS | REAL,
        offers=OFFERS,
        lacks=frozenset({Feature.GRADIENTS, Feature.MASK_GRADIENT}),  # its documentation has no backward pass
        spellings=TABLES,
        fewer=frozenset({"q", "k_cache", "v_cache", "cache_seqlens"}),
        seen_fit=taken_cache,
        needed=needed_of_cache,
        start=feeding,
        ways=WAYS,
    ),
    Interface(
        "flash_attn_qkvpacked_func",
        frozenset({"qkv", "softmax_scale", "causal"}),
        qkv_packed,
        OPTIONS,
        SETTINGS,
        offers=OFFERS,
        lacks=frozenset({Feature.CROSS, Feature.GROUPED, Feature.VALUE_WIDTH}),
    ),
    Interface(
        "flash_attn_kvpacked_func",
        frozenset({"q", "kv", "softmax_scale", "causal"}),
        kv_packed,
        OPTIONS,
        SETTINGS,
        offers=OFFERS,
        lacks=frozenset({Feature.VALUE_WIDTH}),
    ),
    Interface(
        "flash_attn_func",
        frozenset({"q", "k", "v", "softmax_scale", "causal", "window_size"}),
        batched,
        OPTIONS,
        SETTINGS,
        offers=OFFERS,
        either_order=True,
        fewer=frozenset({"q", "k", "v", "causal"}),
    ),
)
"""Those with more parameters first."""
