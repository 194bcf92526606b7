"""Functions of latents: keys and values of all heads as one row for each token."""

from __future__ import annotations

from itertools import product
from typing import Any

from attention_conformance.implementations.adapters.latent import LatentCall
from attention_conformance.implementations.adapters.paging import lengths_of_samples
from attention_conformance.implementations.discovery.shipped.shipped import Interface, Shipped, first
from attention_conformance.spec.features import Feature

QUERIES = (("q_nope", "q_pe"), ("q_nope", "q_rope"), ("query", "query_rope"))
ROWS = (("kv_c", "k_pe"), ("c_kv", "k_pe"), ("ckv", "kpe"), ("kv_c_normed", "k_pe"), ("c_kv", "key_rope"))
UP = (("w_uk", "w_uv"), ("W_UK", "W_UV"), ("w_kc", "w_vc"))
LACKS = frozenset({Feature.MASK_GRADIENT, Feature.CONTAINMENT, Feature.GROUPED, Feature.LOG_SUM_EXP})
AT_THE_END = {"causal-alignment": "bottom-right-real", "empty-row": "zeros"}
"""The last query stands at the last token of its sample."""
SCORED = {
    "is_causal": ("is_causal", "causal"),
    "scale": ("scale", "softmax_scale", "sm_scale"),
    "valid_lens": ("valid_lens", "cache_seqlens", "seq_lens", "kv_lens"),
}


def with_matrices(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """Both parts of queries (B, H, Lq, d), latents and rotary parts (B, Lk, d), and both matrices (H, d, r)."""
    pairs = (next(pair for pair in known if {*pair} <= shipped.names) for known in (QUERIES, ROWS))
    names = [*(name for pair in pairs for name in pair), shipped.own["w_uk"], shipped.own["w_uv"]]

    def called(*given: Any, **others: Any) -> Any:
        return first(shipped.function(**dict(zip(names, given, strict=True)), **shipped.keywords(others)))[0]

    return LatentCall(called)(query, key, value, **options)


LATENT = tuple(
    Interface(
        "attention over latents",
        frozenset({*queries, *rows, *up}),
        with_matrices,
        dict(zip(("w_uk", "w_uv"), up, strict=True)),
        AT_THE_END,
        fit=lengths_of_samples,
        lacks=LACKS,
        spellings=SCORED,
    )
    for queries, rows, up in product(QUERIES, ROWS, UP)
)
