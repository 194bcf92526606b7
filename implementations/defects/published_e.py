"""The mistakes of write-up E, multi-head and cross-attention with a mask, each as published and on its own."""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps
from attention_conformance.implementations.defects.breaking import CRASH, LEAK, breaks_layer
from attention_conformance.implementations.defects.published import E_CROSS, E, divides
from attention_conformance.spec.features import Feature

breaks_published = partial(breaks_layer, free=False)
breaks_e = partial(breaks_published, features=E)


@breaks_published("scores.scale-default", features=E_CROSS, holds=("shapes.output", "softmax.rows-sum-to-one"))
class EScaleOfTheSecondInput(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        return super().forward(query, key, value, scale=key.shape[-1] ** -0.5, **options)


@breaks_published(
    "projections.value",
    features=E_CROSS - {Feature.VALUE_WIDTH},
    holds=("projections.output-bias", "heads.independent"),
)
class EKeysAndValuesTied(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        both = self.k(key)
        return self.q(query), both, both


crashes_published = partial(breaks_published, severity=CRASH)
crashes_cross = partial(crashes_published, features=E_CROSS, construct=divides)


@crashes_cross("cross-attention.lengths", holds=("errors.heads",), raises=True)
class EOneLength(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length = query.shape[:2]
        q, k, v = super().projected(query, key, value)
        return q, k.view(batch, length, k.shape[-1]), v.view(batch, length, v.shape[-1])


@crashes_cross("shapes.output", "cross-attention.widths", holds=("errors.heads",))
class EOutputAsWideAsTheSecondInput(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        answer: Tensor = super().forward(query, key, value, **options)
        return F.pad(answer, (0, key.shape[-1] - answer.shape[-1]))


@breaks_e("heads.split", holds=("shapes.output", "effects.repeatable"))
class EInputSplit(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = (self._piecewise(*pair) for pair in ((query, self.q), (key, self.k), (value, self.v)))
        return q, k, v

    def _piecewise(self, x: Tensor, layer: torch.nn.Linear) -> Tensor:
        rows, columns = (torch.arange(n) * self.num_heads // n for n in layer.weight.shape)
        return F.linear(x, layer.weight * (rows[:, None] == columns))


def _billion(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(mask == 0, -1e9)


def _billion_for_padding(scores: Tensor, padding: Tensor) -> Tensor:
    return _billion(scores, padding[:, None, None])


@breaks_e(
    "masks.empty-row-bool",
    "masks.empty-row-padding",
    holds=("masks.bool", "masks.key-padding", "masks.no-influence"),
    severity=LEAK,
)
class EFillOfABillion(Layer):
    steps = Steps(add_mask=_billion, add_padding=_billion_for_padding, softmax=lambda scores: torch.softmax(scores, -1))


@crashes_published(
    "masks.bool", "masks.key-padding", features=E, holds=("shapes.output",), dtype="float16", raises=True
)
class EFillBeyondHalf(Layer):
    steps = Steps(wide=False, add_mask=_billion, add_padding=_billion_for_padding)


def _on_the_head_axis(scores: Tensor, padding: Tensor) -> Tensor:
    return scores.masked_fill(~padding.unsqueeze(1), -INFINITY)


@breaks_e("masks.key-padding", holds=("masks.bool", "masks.broadcast"), severity=LEAK, raises=True)
class EPaddingOnTheHeadAxis(Layer):
    steps = Steps(add_padding=_on_the_head_axis)
