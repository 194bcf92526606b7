"""Right implementations of sinks and extra keys, each by another formula."""

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.extended_layers import (
    KEYED_FEATURES,
    KEYED_PLACES,
    KeyedLayer,
    call_keyed,
)
from attention_conformance.implementations.builtin.stepwise.steps import Steps, accumulator, repeat_kv
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.reference.family_styles import rescaled_for_sinks
from attention_conformance.tests.selftest.reference.styles import scores_of
from attention_conformance.tests.selftest.right.right import BOTH, module, op

SINKS = {Feature.SINKS, Feature.SOFTCAP, Feature.GROUPED, Feature.WINDOW}
ZERO = {Feature.ZERO_ATTN, Feature.WINDOW, Feature.ALIBI}


def by_starting_state(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """Key by key: the running maximum starts at the sink and the running sum at 1, the sink's own exponential."""
    sinks = options.pop("sinks", None)
    if sinks is None:
        return Steps().answer(query, key, value, **options)
    q, k, v = (x.to(accumulator(query.dtype)) for x in (query, key, value))
    answer = _key_by_key(scores_of(q, k, options), repeat_kv(v, q.shape[1]), sinks)
    return tuple(x.to(query.dtype) for x in answer)


def _key_by_key(scores: Tensor, value: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    top = sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
    whole, mixed = torch.ones_like(top), torch.zeros_like(scores[..., :1]) * value[:, :, :1]
    for s, v in zip(scores.split(1, -1), value.split(1, -2), strict=True):
        higher = torch.maximum(top, s).detach()
        e, earlier = (s - higher).exp(), (top - higher).exp()
        whole, mixed, top = whole * earlier + e, mixed * earlier + e @ v, higher
    return mixed / whole, (scores - top).exp() / whole, (top + whole.log())[..., 0]


def zero_key_as_sink(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """A zero key is a sink of 0, whose share is the last column of the weights."""
    if not options.pop("add_zero_attn", False):
        return Steps().answer(query, key, value, **options)
    sinks = torch.zeros(query.shape[1], dtype=query.dtype)
    output, weights, lse = Steps().answer(query, key, value, sinks=sinks, **options)
    return output, torch.cat([weights, (-lse.to(accumulator(query.dtype))).exp()[..., None].to(weights.dtype)], -1), lse


class RolledLayer(KeyedLayer):
    """Extra keys come first, masks are lengthened at their start, and the weights are put in order at the end."""

    def followed(self, rows: Tensor, name: str, zero: bool) -> Tensor:
        longer = super().followed(rows, name, zero)
        return longer.roll(longer.shape[-2] - rows.shape[-2], -2)

    def lengthened(self, mask: Tensor, count: int) -> Tensor:
        return super().lengthened(mask, count).roll(count, -1)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        output, weights = super().forward(query, key, value, **options)
        return output, weights.roll(key.shape[-2] - weights.shape[-1], -1)


RIGHT_SINKS = (
    op("steps", Steps().answer, SINKS | ZERO, extras=BOTH),
    op("logistic", rescaled_for_sinks(Steps()), SINKS, extras=BOTH),
    op("starting-state", by_starting_state, SINKS, extras=BOTH),
    op("zero-key-as-sink", zero_key_as_sink, ZERO, extras=BOTH),
    module("keyed", KeyedLayer, call_keyed, KEYED_FEATURES, places=KEYED_PLACES, extras=("weights",)),
    module("rolled", RolledLayer, call_keyed, KEYED_FEATURES, places=KEYED_PLACES, extras=("weights",)),
)
