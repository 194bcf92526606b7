"""The mistakes of the five write-ups that the specification encodes, A to E, each as published and on its own."""

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.api.contract import Claims, Result
from attention_conformance.implementations.builtin.stepwise.layer import Layer
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps, mix, softmax
from attention_conformance.implementations.defects.breaking import CRASH, LEAK, NAN, breaks_layer, breaks_run
from attention_conformance.implementations.defects.errors import takes_anything
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array, Problem

SOURCE = frozenset({Feature.CORE, Feature.PROJECTIONS, Feature.MODEL_WIDTH, Feature.VIEWS, Feature.GRADIENTS})
OUTPUT = frozenset({Feature.OUTPUT_PROJECTION, Feature.OUTPUT_BIAS})
A = SOURCE | {Feature.HEADS, Feature.VALUE_WIDTH}
B = SOURCE | {Feature.VALUE_WIDTH, Feature.BIAS}
C = SOURCE | {Feature.HEADS, Feature.BIAS}
D = SOURCE | OUTPUT | {Feature.HEADS, Feature.BIAS, Feature.VALID_LENS}
D_CROSS = D | {Feature.CROSS, Feature.KEY_VALUE, Feature.INPUT_WIDTHS}
E = SOURCE | OUTPUT | {Feature.HEADS, Feature.VALUE_WIDTH, Feature.BOOL_MASK, Feature.KEY_PADDING}
E_CROSS = E | {Feature.CROSS, Feature.INPUT_WIDTHS}


def divides(num_heads: int, width: int) -> object:
    """A constructor that checks the number of heads."""
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"{num_heads} heads for a width of {width}")
    return width // num_heads


def _assertion_gone(num_heads: int, width: int) -> object:
    return width // num_heads


def _remainder_checked(num_heads: int, width: int) -> object:
    if width % num_heads:
        raise ValueError(f"{num_heads} heads for a width of {width}")
    return width // num_heads


breaks_published = partial(breaks_layer, free=False)
breaks_b = partial(breaks_published, features=B)
crashes_published = partial(breaks_published, severity=CRASH)
crashes_c = partial(crashes_published, features=C)
breaks_a = partial(crashes_published, features=A)


@breaks_a(
    "errors.heads", "errors.negative-heads", construct=_assertion_gone, holds=("heads.split", "scores.scale-default")
)
class AChecksByAssertion(Layer):
    """Right, apart from its constructor."""


@breaks_a("errors.negative-heads", construct=_remainder_checked, holds=("errors.heads", "heads.split"))
class AHeadsBelowOneUnchecked(Layer):
    """Right, apart from its constructor."""


def _columns(scores: Array, late: bool, whole: bool, width: int) -> Array:
    """Weights (Lk, Lq) from k^T q; `late`: the scale comes last, `whole`: one maximum for all columns."""
    scaled = scores if late else scores / np.sqrt(width).astype(scores.dtype)
    e = np.exp(scaled - scaled.max(axis=None if whole else 0, keepdims=True))
    weights: Array = e / e.sum(axis=0) / (np.sqrt(width).astype(scores.dtype) if late else 1)
    return weights


def _run_columns(problem: Problem, late: bool, whole: bool) -> Result:
    """Tokens are columns, and there is no batch: one sample after the other."""
    w_q, w_k, w_v = (problem.parameters[name].T for name in ("w_q", "w_k", "w_v"))
    with np.errstate(all="ignore"):
        samples = [w_v @ x.T @ _columns((w_k @ x.T).T @ (w_q @ x.T), late, whole, len(w_q)) for x in problem.query]
    return Result(np.stack([sample.T for sample in samples]))


COLUMNS = Claims(
    Scope.MODULE,
    frozenset({Feature.CORE, Feature.PROJECTIONS, Feature.MODEL_WIDTH, Feature.VIEWS, Feature.VALUE_WIDTH}),
    dtypes=("float64", "float32"),
)


@breaks_run(
    "scores.scale-default", "softmax.rows-sum-to-one", claims=COLUMNS, holds=("shapes.output", "relations.permute-keys")
)
def b_output_divided(problem: Problem, device: str) -> Result:
    return _run_columns(problem, late=True, whole=False)


@breaks_run("softmax.row-maximum", claims=COLUMNS, holds=("scores.scale-default", "softmax.large-scores"), severity=NAN)
def b_global_maximum(problem: Problem, device: str) -> Result:
    return _run_columns(problem, late=False, whole=True)


@breaks_b(
    "softmax.rows-sum-to-one",
    "softmax.weights",
    "scores.scale-default",
    extras=("weights",),
    holds=("shapes.output", "relations.permute-keys"),
)
class BWeightsDivided(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        q, k, v = (self.split(x) for x in self.projected(query, key, value))
        output, weights, _ = self.steps.answer(q, k, v, scale=1.0)
        by = q.shape[-1] ** -0.5
        return self.merge(output) * by, weights * by


@breaks_b("values.width", "shapes.output", "relations.convex-hull", construct=divides, holds=("effects.repeatable",))
class BOutputAsWideAsTheInput(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        answer: Tensor = super().forward(query, key, value)
        return F.pad(answer, (0, query.shape[-1] - answer.shape[-1]))


@crashes_c("projections.key", "projections.value", construct=divides, holds=("errors.heads",), raises=True)
class CMapsUnderOtherNames(Layer):
    def projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(query), getattr(self, "keys")(key), getattr(self, "values")(value)  # noqa: B009


@breaks_published("heads.split", features=C, holds=("shapes.output", "relations.linear-values"), severity=LEAK)
class CViewInOneStep(Layer):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(self.num_heads, *x.shape[:2], -1).transpose(0, 1)


@breaks_published("softmax.weights", features=C, extras=("weights",), holds=("heads.split", "values.weighted-sum"))
class CHeadsFirstInWeights(Layer):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        q, k, v = (self.split(x) for x in self.projected(query, key, value))
        output, weights, _ = self.steps.answer(q, k, v)
        return self.merge(output), weights.transpose(0, 1)


@crashes_c("errors.heads", "errors.negative-heads", construct=takes_anything, holds=("heads.split", "projections.bias"))
class CChecksWhenCalled(Layer):
    def split(self, x: Tensor) -> Tensor:
        if x.shape[-1] % self.num_heads:
            raise ValueError(f"{self.num_heads} heads for a width of {x.shape[-1]}")
        return super().split(x)


@breaks_published(
    "projections.output",
    "projections.output-bias",
    features=(C - {Feature.MODEL_WIDTH}) | OUTPUT,
    holds=("shapes.output", "effects.repeatable"),
)
class COutputMapMissing(Layer):
    def output(self, merged: Tensor) -> Tensor:
        return merged


class LengthsLayer(Layer):
    """The layer with lengths: each query attends to as many leading keys as its length."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, valid_lens: Tensor | None = None, **options: Any) -> Tensor:
        if valid_lens is None:
            return self.steps(q, k, v)
        lengths = valid_lens.reshape(q.shape[0], 1, -1, 1)
        return self.steps(q, k, v, attn_mask=torch.arange(k.shape[-2]) < lengths)


@breaks_published("heads.independent", features=D_CROSS, holds=("shapes.output", "projections.value"))
class DHeadCountLost(LengthsLayer):
    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.num_heads = 1


@breaks_published("heads.split", features=D, holds=("shapes.output", "projections.output-bias"))
class DHalfOfTheSplitLost(Layer):
    def split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, -1)

    def merge(self, heads: Tensor) -> Tensor:
        return heads.flatten(2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, valid_lens: Tensor | None = None, **options: Any) -> Tensor:
        return self.steps(q, k, v)


@crashes_published("heads.merge", features=D_CROSS, construct=divides, holds=("errors.heads",), raises=True)
class DConcatenationLost(LengthsLayer):
    def merge(self, heads: Tensor) -> Tensor:
        return heads


@crashes_published(
    "masks.valid-lens", features=D_CROSS, holds=("heads.split", "heads.merge", "cross-attention.lengths"), raises=True
)
class DLengthsNotRepeated(Layer):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, valid_lens: Tensor | None = None, **options: Any) -> Tensor:
        if valid_lens is None:
            return self.steps(q, k, v)
        visible = torch.arange(k.shape[-2]) < valid_lens.reshape(len(q), -1, 1)
        scores = (q @ k.mT * q.shape[-1] ** -0.5).flatten(0, 1).masked_fill(~visible, -INFINITY)
        heads: Tensor = mix(softmax(scores), v.flatten(0, 1)).unflatten(0, q.shape[:2])
        return heads


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
