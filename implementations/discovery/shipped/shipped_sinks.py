"""The function of gpt-oss: one sequence, always causal, with a logit of each head next to its scores."""

from __future__ import annotations

from functools import partial
from typing import Any

from attention_conformance.implementations.api.contract import Fit
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.shipped.shipped import Interface, Shipped, first
from attention_conformance.implementations.discovery.vocabulary import OPTIONS
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.optional import optional

torch = optional("torch")
SHAPES = ((3, 2, 2, 4), (5, 2, 4))
"""Of fewer queries than keys, (Lq, H_kv, group, d), and of their keys, (Lk, H_kv, d)."""


def sequence_by_sequence(shipped: Shipped, query: Any, key: Any, value: Any, options: dict[str, Any]) -> Any:
    """(Lq, H_kv, group, d) and (Lk, H_kv, d), a call for each sample; its output has all heads in one axis."""
    given = dict(options)
    heads, key_heads = query.shape[1], key.shape[1]
    given.setdefault("scale", max(1, query.shape[-1]) ** -0.5)
    if given.get("sinks") is None:
        given["sinks"] = query.new_full((heads,), torch.finfo(query.dtype).min / 4)  # next to any score it is nothing
    if given.get("window_size") is not None:
        given["window_size"] = given["window_size"][0] + 1  # it counts the query's own key
    rows = []
    for q, *kv in zip(query, key, value, strict=True):
        grouped = q.swapaxes(0, 1).unflatten(1, (key_heads, heads // key_heads))
        answer = first(shipped.function(grouped, *(x.swapaxes(0, 1) for x in kv), **shipped.keywords(given)))[0]
        rows.append(answer.reshape(len(grouped), heads, value.shape[-1]).swapaxes(0, 1))
    return torch.stack(rows) if rows else query.new_zeros((*query.shape[:3], value.shape[-1]))


def seen_fit(shipped: Shipped) -> tuple[Fit, str]:
    """Fewer queries than keys stand at the last of these, where it takes them."""
    query, key = (torch.zeros(shape) for shape in SHAPES)
    sinks = torch.zeros(query.shape[1] * query.shape[2])
    taken = not safe_call(partial(shipped.function, query, key, key, sinks, 1.0)).error
    return (_at_the_end, "") if taken else (_as_many, "it takes as many queries as keys")


def _at_the_end(case: Case) -> Case:
    return case.sized(query_length=min(case.sizes.query_length, case.sizes.key_length))


def _as_many(case: Case) -> Case:
    length = min(case.sizes.query_length, case.sizes.key_length)
    return case.sized(query_length=length, key_length=length)


SINKS = Interface(
    "the function of gpt-oss",
    frozenset({"Q", "K", "V", "S", "sm_scale"}),
    sequence_by_sequence,
    {"scale": "sm_scale", "sinks": "S", "window_size": "sliding_window"},
    {"causal-alignment": "bottom-right"},
    spellings={"softcap": OPTIONS["softcap"].parameters},
    seen_fit=seen_fit,
    lacks=frozenset({Feature.EMPTY_SIZES}),
)
