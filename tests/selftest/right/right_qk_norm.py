"""Right norms of queries and keys: rounded where published code rounds, and of each kind that the conventions name."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.step_options import CallOptions
from attention_conformance.implementations.builtin.stepwise.steps import Steps, norm
from attention_conformance.spec.conventions import Conventions, NormGain, NormKind, NormOrder, NormSpan
from attention_conformance.spec.features import Feature
from attention_conformance.spec.premises import Premises
from attention_conformance.tests.selftest.right.right import op

CLAIMED = {Feature.QK_NORM, Feature.NORM_EPSILON, Feature.ROTARY, Feature.GROUPED}
Norm = Callable[[Tensor, Tensor, float], Tensor]


def gain_behind_the_rounding(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """In float32 inside, stored, and then multiplied in the dtype of the rows."""
    return gain.to(rows.dtype) * norm(rows.to(wide(rows)), None, epsilon).to(rows.dtype)


def rounded_once(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return norm(rows.to(wide(rows)), gain.to(wide(rows)), epsilon).to(rows.dtype)


def inverse_rounded(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    mean = rows.to(wide(rows)).square().mean(-1, keepdim=True)
    return rows * torch.rsqrt(mean + epsilon).to(rows.dtype) * gain.to(rows.dtype)


def by_the_length(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """The root of the width times a row by its length."""
    length = (rows.to(wide(rows)).square().sum(-1, keepdim=True) + rows.shape[-1] * epsilon).sqrt()
    normed: Tensor = rows.shape[-1] ** 0.5 * rows.to(wide(rows)) / length * gain
    return normed.to(rows.dtype)


def of_the_library(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return F.rms_norm(rows, (rows.shape[-1],), gain.to(rows.dtype), epsilon)


def layer_of_the_library(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return F.layer_norm(rows, (rows.shape[-1],), gain.to(rows.dtype), None, epsilon)


def layer_by_squares(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    """The variance as the mean of the squares less the square of the mean."""
    x = rows.to(wide(rows))
    mean = x.mean(-1, keepdim=True)
    variance = (x.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0.0)
    return ((x - mean) * torch.rsqrt(variance + epsilon) * gain).to(rows.dtype)


def cosine(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return F.normalize(rows.to(wide(rows)), dim=-1, eps=epsilon).to(rows.dtype) * gain.to(rows.dtype)


def over_the_width(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    tokens = rows.transpose(1, 2).flatten(2)
    normed: Tensor = gain_behind_the_rounding(tokens, gain, epsilon).unflatten(-1, rows.shape[1::2]).transpose(1, 2)
    return normed


def plus_one(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return rounded_once(rows, 1.0 + gain.to(wide(rows)), epsilon)


def wide(rows: Tensor) -> torch.dtype:
    return torch.float32 if rows.dtype.itemsize < 4 else rows.dtype


@dataclass(frozen=True)
class Last(Steps):
    """Rotations come first."""

    def _prepared(self, q: Tensor, k: Tensor, v: Tensor, call: CallOptions) -> Any:
        gains, epsilon = (call.query_norm, call.key_norm), call.norm_epsilon
        if gains[0] is None or gains[1] is None:
            return super()._prepared(q, k, v, call)
        number = k.shape[1]
        q, k, v, where = super()._prepared(q, k, v, replace(call, query_norm=None, key_norm=None))
        epsilon = 1e-6 if epsilon is None else epsilon
        group = k.shape[1] // number
        given = self.norm(k[:, ::group], gains[1], epsilon).repeat_interleave(group, 1)
        return self.norm(q, gains[0], epsilon), given, v, where


def bare(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    options = {name: option for name, option in options.items() if "norm" not in name}
    q, k = (F.rms_norm(x.to(wide(x)), x.shape[-1:], eps=1e-5).to(x.dtype) for x in (query, key))
    return Steps()(q, k, value, **options)


def _op(name: str, of: Norm, steps: type[Steps] = Steps, **conventions: Any) -> Any:
    return op(name, steps(wide=False, norm=of), CLAIMED, conventions=Conventions(**conventions))  # type: ignore[arg-type]


_BARE = op("bare", bare, set(), conventions=Conventions(norm_span=NormSpan.BARE))
RIGHT = (
    _op("gain-behind-the-rounding", gain_behind_the_rounding),
    _op("rounded-once", rounded_once),
    _op("inverse-rounded", inverse_rounded),
    _op("by-the-length", by_the_length),
    _op("of-the-library", of_the_library),
    _op("layer-of-the-library", layer_of_the_library, norm_kind=NormKind.LAYER),
    _op("layer-by-squares", layer_by_squares, norm_kind=NormKind.LAYER),
    _op("cosine", cosine, norm_kind=NormKind.L2),
    _op("over-the-width", over_the_width, norm_span=NormSpan.WIDTH),
    _op("plus-one", plus_one, norm_gain=NormGain.PLUS_ONE),
    _op("last", gain_behind_the_rounding, Last, norm_order=NormOrder.LAST),
    replace(_BARE, claims=replace(_BARE.claims, premises=Premises(qk_norm=True, norm_epsilon=1e-5))),
)

WITHOUT = {"bare": ("qk-norm.gain-gradient",)}
"""A norm that learns no gain has no gradient of one."""
