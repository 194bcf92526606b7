"""Functions of keys and values that are codes of 8 bits with scales."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from attention_conformance.implementations.adapters.quantising import DTYPES, OPTIONS, QuantisedCall, TakenCodes
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.shipped.shipped import Call, Interface, Shipped, first
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.spec.optional import optional
from attention_conformance.spec.stored_keys import Codes, ScaledBy

torch = optional("torch")

SCALES = (("key_scale", "value_scale"), ("k_scale", "v_scale"), ("k_descale", "v_descale"))
INPUTS = (("query", "key", "value"), ("q", "k", "v"))
LACKS = frozenset({Feature.GRADIENTS, Feature.MASK_GRADIENT, Feature.LOG_SUM_EXP, Feature.CONTAINMENT})
SCORED = {
    "is_causal": ("is_causal", "causal"),
    "scale": ("scale", "softmax_scale", "sm_scale"),
    "softcap": ("softcap", "logits_soft_cap"),
}
SMALL = Case(seed=8).sized(batch=3, num_heads=2, query_length=3, key_length=7, d_k=16, d_v=16)


def with_scales(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """(B, H, L, d), with scales (1,), (Hk,), (B, Hk), (B, Hk, Lk) or (B, Hk, blocks)."""
    names = [shipped.own[name] for name in ("key_scale", "value_scale")]

    def called(query: Any, key: Any, value: Any, *scales: Any, **others: Any) -> Any:
        given = shipped.keywords({name: option for name, option in others.items() if name not in OPTIONS})
        return first(shipped.function(query, key, value, **dict(zip(names, scales, strict=True)), **given))[0]

    return QuantisedCall(called)(query, key, value, **options)


def taken_codes(
    shipped: Shipped, call: Call = with_scales, among: Sequence[ScaledBy] = tuple(ScaledBy)
) -> tuple[TakenCodes, str]:
    """By the codes that it answers with one scale, and the extents of scales that it answers in the first of them."""
    kinds = tuple(kind for kind in DTYPES if _answers(shipped, call, kind, ScaledBy.TENSOR))
    extents = tuple(extent for extent in among if kinds and _answers(shipped, call, kinds[0], extent))
    note = f"codes {', '.join(kinds) or 'of no kind'}, a scale for each {', '.join(extents) or 'thing refused'}"
    return TakenCodes(kinds, extents), note


def _answers(shipped: Shipped, call: Call, kind: Codes, extent: ScaledBy) -> bool:
    """Whether a call gives an output of the right shape."""
    problem = build(SMALL.extended(codes=kind, scaled_by=extent), "float32")
    options = {"codes": kind, **{name: problem.extras[name] for name in ("key_scale", "value_scale")}}
    outcomes = [safe_call(lambda: call(shipped, problem.query, problem.key, problem.value, options))]
    if torch:
        of_tensors = {n: o if n == "codes" else torch.tensor(o) for n, o in options.items()}
        query, key, value = (torch.tensor(rows) for rows in (problem.query, problem.key, problem.value))
        outcomes.append(safe_call(lambda: call(shipped, query, key, value, of_tensors)))
    return any(getattr(each.value, "shape", ()) == problem.query.shape for each in outcomes)


QUANTISED = tuple(
    Interface(
        "attention over codes with scales",
        frozenset({*inputs, *scales}),
        with_scales,
        {"key_scale": scales[0], "value_scale": scales[1], "codes": scales[0]},
        {"causal-alignment": "bottom-right"},
        lacks=LACKS,
        spellings=SCORED,
        seen_fit=taken_codes,
    )
    for inputs, scales in product(INPUTS, SCALES)
)
