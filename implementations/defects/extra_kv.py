"""Mistakes of chapter 22: the learned key and value of a layer, alone and together with the zero key."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.extended_layers import (
    KEYED_FEATURES,
    KEYED_PLACES,
    KeyedLayer,
    call_keyed,
)
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY
from attention_conformance.implementations.defects.breaking import GRADIENT, LEAK, breaks_layer

breaks_keys: Callable[..., Any] = partial(
    breaks_layer, features=KEYED_FEATURES, extras=("weights",), call=call_keyed, places=KEYED_PLACES
)
"""`breaks_layer` for a `KeyedLayer`."""


@breaks_keys("sinks.bias-kv", holds=("sinks.zero-attn", "projections.key", "heads.independent"))
class LearnedKeySplitByComponent(KeyedLayer):
    def learned(self, rows: Tensor, bias: Tensor) -> Tensor:
        return bias.view(-1, rows.shape[1]).T[None, :, None].expand(len(rows), -1, -1, -1)


@breaks_keys("sinks.bias-kv", holds=("sinks.zero-attn", "projections.key", "heads.independent"))
class LearnedKeyWithTheBiases(KeyedLayer):
    def followed(self, rows: Tensor, name: str, zero: bool) -> Tensor:
        own = getattr(self, name[-1]).bias
        if own is None or not hasattr(self, name):
            return super().followed(rows, name, zero)
        rows = torch.cat([rows, self.learned(rows, getattr(self, name) + own)], -2)
        return F.pad(rows, (0, 0, 0, 1)) if zero else rows


@breaks_keys(
    "sinks.bias-kv", "sinks.bias-kv-gradient", holds=("sinks.zero-attn", "projections.key", "heads.independent")
)
class LearnedKeyForTheFirstSample(KeyedLayer):
    def learned(self, rows: Tensor, bias: Tensor) -> Tensor:
        first = super().learned(rows, bias)
        return torch.cat([first[:1], torch.zeros_like(first[1:])])


@breaks_keys(
    "sinks.bias-kv-masks",
    "sinks.bias-kv-causal",
    holds=("sinks.bias-kv", "sinks.zero-attn", "masks.key-padding"),
    severity=LEAK,
)
class MasksLengthenedAtTheirStart(KeyedLayer):
    def lengthened(self, mask: Tensor, count: int) -> Tensor:
        return F.pad(mask, (count, 0))


@breaks_keys("sinks.bias-kv-masks", "sinks.zero-attn-masks", holds=("sinks.bias-kv", "masks.key-padding", "masks.bool"))
class ExtraKeysMasked(KeyedLayer):
    def lengthened(self, mask: Tensor, count: int) -> Tensor:
        hidden = (mask == -INFINITY).any(-1, keepdim=True) & (mask > -INFINITY).any(-1, keepdim=True)
        columns = torch.zeros_like(mask[..., :1]).masked_fill(hidden, -INFINITY)
        return torch.cat([mask, *[columns] * count], -1)


@breaks_keys(
    "sinks.bias-kv-causal",
    "sinks.zero-attn-causal",
    holds=("sinks.bias-kv-masks", "sinks.zero-attn-masks", "causal.square"),
)
class ExtraKeysTakenForTheFuture(KeyedLayer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        self.is_causal = options.pop("is_causal", False)
        return super().forward(query, key, value, **options)

    def lengthened(self, mask: Tensor, count: int) -> Tensor:
        longer = super().lengthened(mask, count)
        return longer.masked_fill(torch.ones_like(longer).triu(1).bool(), -INFINITY) if self.is_causal else longer


@breaks_keys(
    "sinks.bias-kv-gradient", holds=("sinks.bias-kv", "sinks.bias-kv-masks", "gradients.parameters"), severity=GRADIENT
)
class LearnedKeyWithoutGradient(KeyedLayer):
    def learned(self, rows: Tensor, bias: Tensor) -> Tensor:
        return super().learned(rows, bias.detach())


@breaks_keys("sinks.bias-kv-weights", "sinks.zero-attn-weights", holds=("sinks.bias-kv", "sinks.bias-kv-masks"))
class ColumnsOfExtraKeysCutOff(KeyedLayer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        output, weights = super().forward(query, key, value, **options)
        return output, weights[..., : key.shape[-2]]


@breaks_keys("sinks.zero-attn-and-bias-kv", holds=("sinks.bias-kv", "sinks.bias-kv-weights", "sinks.zero-attn-masks"))
class ZeroKeyBeforeTheLearnedOne(KeyedLayer):
    def followed(self, rows: Tensor, name: str, zero: bool) -> Tensor:
        return super().followed(F.pad(rows, (0, 0, 0, 1)) if zero else rows, name, False)


@breaks_keys("sinks.zero-attn-and-bias-kv", holds=("sinks.bias-kv", "sinks.bias-kv-masks", "sinks.zero-attn"))
class ZeroKeyDroppedWithTheLearnedOne(KeyedLayer):
    def followed(self, rows: Tensor, name: str, zero: bool) -> Tensor:
        return super().followed(rows, name, zero and not hasattr(self, name))


@breaks_keys(
    "sinks.zero-attn", "sinks.zero-attn-masks", holds=("sinks.bias-kv", "projections.key", "heads.independent")
)
class ZeroKeyProjected(KeyedLayer):
    def followed(self, rows: Tensor, name: str, zero: bool) -> Tensor:
        rows = super().followed(rows, name, False)
        own = getattr(self, name[-1]).bias
        if not zero or own is None:
            return F.pad(rows, (0, 0, 0, 1)) if zero else rows
        return torch.cat([rows, self.learned(rows, own)], -2)
