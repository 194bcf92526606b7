"""Classes that plan a call and then run it, as FlashInfer's wrappers of caches in pages do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from attention_conformance.implementations.adapters.paging import OPTIONS, Pages, in_pages, lengths_of_samples
from attention_conformance.implementations.api.contract import Unsupported
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.shipped.shipped import Interface, Shipped, first, joined
from attention_conformance.spec.cases import Case, MaskShape
from attention_conformance.spec.features import Feature
from attention_conformance.spec.optional import optional

torch = optional("torch")

WORKSPACE = {"cuda": 2**27, "cpu": 2**20}
"""Bytes that such a class is given to work in."""
SCORED = {"scale": "sm_scale", "window_size": "window_left", "softcap": "logits_soft_cap", "sinks": "sinks"}
BY_NAME = ("sm_scale", "window_left", "logits_soft_cap", "q_data_type", "kv_data_type")
"""What a plan documents where its signature states that it takes more by name."""
OF_SAMPLES = {
    MaskShape.FULL: MaskShape.SAMPLE,
    MaskShape.HEAD: MaskShape.SHARED,
    MaskShape.HEADS_ONLY: MaskShape.SHARED,
    MaskShape.EACH_KEYS: MaskShape.KEYS,
}
"""Masks without an axis of heads, in place of those with one."""
LACKS = frozenset({Feature.GRADIENTS, Feature.MASK_GRADIENT})
DOCUMENTED = {"causal-alignment": "bottom-right-real", "empty-row": "zeros", "log-sum-exp-base": "2"}
"""The last query stands at the last key of its sample."""


@dataclass(frozen=True, eq=False)
class Planned:
    """A class with a plan and a run as one function of named arguments: each goes to the method that has it."""

    kind: type

    @cached_property
    def of_plan(self) -> frozenset[str]:
        """The arguments of the plan."""
        return _names(self.kind, "plan")

    @property
    def __signature__(self) -> inspect.Signature:  # what inspect.signature reads
        names = sorted(self.of_plan | _names(self.kind, "run"))
        return inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names])

    def __call__(self, **given: Any) -> Any:
        """The answer of a run, after a plan."""
        wrapper = _built(self.kind, str(given["q"].device))
        wrapper.plan(**{name: each for name, each in given.items() if name in self.of_plan})
        return wrapper.run(**{name: each for name, each in given.items() if name not in self.of_plan})


def as_planned(kind: type) -> Callable[..., Any] | None:
    """The class as a function; None where it is none of these interfaces."""
    planned = Planned(kind)
    names = frozenset(inspect.signature(planned).parameters)
    return planned if any(each.named <= names for each in PLANNED) else None


def _names(kind: type, method: str) -> frozenset[str]:
    signature: inspect.Signature | None = safe_call(lambda: inspect.signature(getattr(kind, method))).value
    parameters = signature.parameters if signature else {}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = {name for name, each in parameters.items() if each.kind not in variadic and name != "self"}
    more = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return frozenset(named | {*BY_NAME}) if more else frozenset(named)


@cache
def _built(kind: type, device: str) -> Any:
    """One for all calls, as servers keep it; it is planned anew for each."""
    return kind(torch.zeros(WORKSPACE[device.partition(":")[0]], dtype=torch.uint8, device=device))


def prefill(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """Queries (B * Lq, H, d), one sample after another."""
    batch, heads, queries, width = query.shape
    pages, mask = in_pages(key, value, options), options.get("attn_mask")
    if mask is not None and options.get("is_causal"):
        raise ValueError("a custom mask takes the place of the causal flag")
    ends = torch.arange(batch + 1, dtype=torch.int32, device=query.device) * queries
    widths = {"head_dim_qk": width, "head_dim_vo": value.shape[-1]}
    given = _given(shipped, query, pages, options, "paged_kv_") | {"qo_indptr": ends}
    given |= {name: each for name, each in widths.items() if name in shipped.names}
    if mask is not None:
        full = mask.expand(batch, 1, queries, key.shape[2])[:, 0]
        of_keys = [each[:, :count] for each, count in zip(full, pages.lengths.tolist(), strict=True)]
        given[shipped.own["attn_mask"]] = torch.cat([each.flatten() for each in of_keys])
    rows = query.swapaxes(1, 2).reshape(batch * queries, heads, width)
    output, logs = first(shipped.function(q=rows, paged_kv_cache=(pages.key, pages.value), **given))
    in_heads = (each.unflatten(0, (batch, queries)).swapaxes(1, 2) for each in (output, *logs[:1]))
    return joined(*in_heads)


def decode(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """Queries (B, H, d), one for each sample."""
    pages = in_pages(key, value, options)
    given = _given(shipped, query, pages, options, "") | {"head_dim": query.shape[-1]}
    rows = query[:, :, 0].contiguous()
    output, logs = first(shipped.function(q=rows, paged_kv_cache=(pages.key, pages.value), **given))
    return joined(*(each.unsqueeze(2) for each in (output, *logs[:1])))


def _given(shipped: Shipped, query: Any, pages: Pages, options: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What both plans take: which pages each sample has, how full its last one is, sizes, types and options."""
    size = pages.key.shape[1]
    counts = -(-pages.lengths // size)
    places = {
        "indptr": torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int(),
        "indices": torch.cat([row[:count] for row, count in zip(pages.table, counts.tolist(), strict=True)]),
        "last_page_len": pages.lengths - (counts - 1).clamp(min=0) * size,
    }
    types = {name: query.dtype for name in ("q_data_type", "kv_data_type") if name in shipped.names}
    heads = {"num_qo_heads": query.shape[1], "num_kv_heads": pages.key.shape[2], "page_size": size}
    others = {name: each for name, each in options.items() if name not in OPTIONS}
    if "window_size" in others:
        others["window_size"] = others["window_size"][0]
    return {f"{prefix}{name}": each for name, each in places.items()} | heads | types | shipped.keywords(others)


def to_the_left(case: Case) -> Case | Unsupported:
    """The fit of a window that has a limit to the left alone, and of masks that all heads share."""
    call = case.extension
    if call.windowed and call.window_left is None:
        return Unsupported("its window has no limit to the right")
    shaped = replace(case, mask_shape=OF_SAMPLES.get(case.mask_shape, case.mask_shape))
    return shaped.extended(window_right=None) if call.windowed else shaped


def _to_the_left(case: Case) -> Case | Unsupported:
    return to_the_left(lengths_of_samples(case))


def one_query(case: Case) -> Case | Unsupported:
    """The fit of a decoder's step, whose query sees all keys of its sample."""
    if case.causal:
        return Unsupported("its query stands at the last key")
    return _to_the_left(case.sized(query_length=1))


def _pages(indices: str, lengths: str) -> dict[str, str]:
    return {"block_table": indices, "page_size": indices, "valid_lens": lengths}


PLANNED = (
    Interface(
        "flashinfer.BatchPrefillWithPagedKVCacheWrapper",
        frozenset({"q", "paged_kv_cache", "qo_indptr"})
        | frozenset({"paged_kv_indptr", "paged_kv_indices", "paged_kv_last_page_len"}),
        prefill,
        SCORED
        | {"is_causal": "causal", "attn_mask": "custom_mask"}
        | _pages("paged_kv_indices", "paged_kv_last_page_len"),
        DOCUMENTED | {"causal-with-mask": "error"},
        fit=_to_the_left,
        lacks=LACKS | {Feature.FLOAT_MASK},
    ),
    Interface(
        "flashinfer.BatchDecodeWithPagedKVCacheWrapper",
        frozenset({"q", "paged_kv_cache", "indptr", "indices", "last_page_len"}),
        decode,
        SCORED | _pages("indices", "last_page_len"),
        DOCUMENTED,
        fit=one_query,
        lacks=LACKS | {Feature.CAUSAL, Feature.VALUE_WIDTH},
    ),
)
"""FlashInfer's, and classes with the same methods."""
