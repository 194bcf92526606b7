"""Functions of keys and values in pages, as servers have them."""

from __future__ import annotations

from itertools import product
from typing import Any

from attention_conformance.implementations.adapters.paging import OPTIONS, PagedCall, in_pages, lengths_of_samples
from attention_conformance.implementations.adapters.quantising import OPTIONS as OPTIONS_OF_CODES
from attention_conformance.implementations.adapters.quantising import as_codes, scales_of_heads
from attention_conformance.implementations.api.contract import Fit, Unsupported
from attention_conformance.implementations.discovery.shipped.shipped import Interface, Shipped, first
from attention_conformance.implementations.discovery.shipped.shipped_quantised import SCALES, taken_codes
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.stored_keys import ScaledBy

TABLES = ("block_table", "block_tables", "page_table")
LENGTHS = ("context_lens", "seq_lens", "cache_seqlens", "kv_lens")
LACKS = frozenset({Feature.GRADIENTS, Feature.MASK_GRADIENT, Feature.LOG_SUM_EXP})
AT_THE_END = {"causal-alignment": "bottom-right-real", "empty-row": "zeros"}
"""The last query stands at the last key of its sample."""
SCORED = {
    "is_causal": ("is_causal", "causal"),
    "scale": ("scale", "softmax_scale", "sm_scale"),
    "window_size": ("window_size",),
    "softcap": ("softcap", "soft_cap", "logits_soft_cap"),
    "cache_batch_idx": ("cache_batch_idx",),
    "cache_rows": ("cache_batch_idx",),
}
"""Options, and the names that functions have for them."""


def of_samples(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """Queries (B, Lq, H, d), pools (pages, page_size, Hk, d), a table and lengths."""
    table, lengths = (shipped.own[name] for name in ("block_table", "valid_lens"))
    kind, scales = options.get("codes"), _scales(shipped, query, key, options)

    def called(query: Any, key: Any, value: Any, pages: Any, counts: Any, **others: Any) -> Any:
        given = {name: others[name] for name in others if name not in OPTIONS_OF_CODES}
        keywords = shipped.keywords(given) | {table: pages, lengths: counts} | scales
        rows = (key, value) if kind is None else (as_codes(key, kind), as_codes(value, kind))
        return first(shipped.function(query, *rows, **keywords))[0]

    return PagedCall(called)(query, key, value, **options)


def _scales(shipped: Shipped, query: Any, key: Any, options: dict[str, Any]) -> dict[str, Any]:
    """By its own names: (1,) or (Hk,), and (B, Hk) where these end as FlashAttention's do."""
    names = [shipped.own[name] for name in ("key_scale", "value_scale") if name in shipped.own]
    if not names:
        return {}
    by_sample = names[0].endswith("descale")
    return dict(zip(names, scales_of_heads(query, key, options, by_sample), strict=True))


def codes_in_pages(shipped: Shipped) -> tuple[Fit, str]:
    """By the codes that it answers, with a scale for all, for each head, and for each head of each sample."""
    codes, note = taken_codes(shipped, of_samples, (ScaledBy.TENSOR, ScaledBy.HEAD, ScaledBy.SAMPLE))
    return lambda case: codes(lengths_of_samples(case)), note


def of_all_tokens(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """Queries (B * Lq, H, d), one sample after another, and lists of the lengths of queries and keys."""
    pages = in_pages(key, value, options)
    batch, _, queries, width = query.shape
    keywords = {name: given for name, given in options.items() if name not in OPTIONS}
    keywords = shipped.keywords({"scale": width**-0.5} | keywords)
    lengths = {"query_lens": [queries] * batch, "kv_lens": [int(count) for count in pages.lengths]}
    rows = query.swapaxes(1, 2).reshape(batch * queries, -1, width)
    given = {"query": rows, "key_cache": pages.key, "value_cache": pages.value, "block_tables": pages.table}
    output = first(shipped.function(**given, **lengths, **keywords))[0]
    return output.reshape(batch, queries, *output.shape[1:]).swapaxes(1, 2)


def decoded(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """Queries (B, H, d), one for each sample, and pools (Hk, pages, page_size, d)."""
    pages = in_pages(key, value, options)
    keywords = shipped.keywords({name: given for name, given in options.items() if name not in OPTIONS})
    if "pages_per_compute_block" in shipped.names:
        keywords["pages_per_compute_block"] = 1
    pools = (pool.swapaxes(1, 2).swapaxes(0, 1) for pool in (pages.key, pages.value))
    output = first(shipped.function(query[:, :, 0], *pools, pages.lengths, pages.table, **keywords))[0]
    return output[:, :, None]


def one_query(case: Case) -> Case | Unsupported:
    """The fit of a decoder's step, whose query sees all keys of its sample."""
    fitted = lengths_of_samples(case).sized(query_length=1)
    return Unsupported("its query stands at the last key") if fitted.causal else fitted


def _names(table: str, lengths: str) -> dict[str, str]:
    return {"block_table": table, "page_size": table, "valid_lens": lengths}


PAGED = (
    Interface(
        "ref_paged_attn of vLLM",
        frozenset({"query", "key_cache", "value_cache", "query_lens", "kv_lens", "block_tables", "scale"}),
        of_all_tokens,
        {"scale": "scale", "softcap": "soft_cap", **_names("block_tables", "kv_lens")},
        AT_THE_END | {"softmax-precision": "float32"},
        fit=lengths_of_samples,
        lacks=LACKS,
    ),
    Interface(
        "jax.experimental.pallas.ops.tpu.paged_attention",
        frozenset({"q", "k_pages", "v_pages", "lengths", "page_indices"}),
        decoded,
        {"softcap": "attn_logits_soft_cap", **_names("page_indices", "lengths")},
        {"default-scale": "one"},
        fit=one_query,
        lacks=LACKS | {Feature.CAUSAL},
    ),
    *(
        Interface(
            "paged_attention over codes",
            frozenset({"query", "key_cache", "value_cache", table, lengths, *scales}),
            of_samples,
            _names(table, lengths) | {"key_scale": scales[0], "value_scale": scales[1], "codes": scales[0]},
            AT_THE_END,
            lacks=LACKS,
            spellings=SCORED,
            seen_fit=codes_in_pages,
        )
        for table, lengths, scales in product(TABLES, LENGTHS, SCALES)
    ),
    *(
        Interface(
            "paged_attention",
            frozenset({"query", "key_cache", "value_cache", table, lengths}),
            of_samples,
            _names(table, lengths),
            AT_THE_END,
            fit=lengths_of_samples,
            lacks=LACKS,
            spellings=SCORED,
        )
        for table, lengths in product(TABLES, LENGTHS)
    ),
)
"""Those with more parameters first."""
