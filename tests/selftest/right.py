"""Right implementations in unusual styles: other orders of summation, other bases, other places for the roundings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import copysign
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.implementations.builtin.sdpa import SDPA_FEATURES
from attention_conformance.implementations.builtin.stepwise.steps import (
    INFINITY,
    Steps,
    accumulator,
    factor,
    score,
    softmax,
)
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.selftest.styles import CORRECT, LOG2_E, Inputs, Style

NOT_OF_STYLES = {Feature.GRADIENTS, Feature.MASK_GRADIENT, Feature.EMPTY_SIZES}
OVERFLOWS = ("numerics.half-range",)
"""The advice that a style cannot follow which stores the products in a half type."""
ADVICE = (*OVERFLOWS, "errors.key-value-length")
"""What styles in NumPy do not follow: slices of key and value hide that their lengths differ."""


@dataclass(frozen=True)
class Right:
    """An implementation that must pass every clause it claims, but for some advice (SHOULD)."""

    implementation: Implementation
    advice: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.implementation.name


def or_zero(x: Tensor) -> Tensor:
    return torch.where(x.isinf(), 0.0, x)


def largest(scores: Tensor) -> Tensor:
    """The maximum of each row, 0 for a row that sees nothing; no part of the graph."""
    return or_zero(pad(scores.detach(), (0, 1), value=-INFINITY).amax(-1, keepdim=True))


def exp_of_log_softmax(scores: Tensor) -> Tensor:
    empty = (scores == -INFINITY).all(-1, keepdim=True)
    return torch.where(empty, 0.0, torch.log_softmax(torch.where(empty, 0.0, scores), -1).exp())


def powers_of_two(scores: Tensor) -> Tensor:
    rotated = scores * LOG2_E
    e = (rotated - largest(rotated)).exp2()
    whole = e.sum(-1, keepdim=True)
    return e / torch.where(whole == 0, 1.0, whole)


def written_out(scores: Tensor) -> Tensor:
    """Every intermediate in the dtype of the scores."""
    e = (scores - largest(scores)).exp()
    whole = e.sum(-1, keepdim=True)
    return e / torch.where(whole == 0, 1.0, whole)


def scale_on_both_sides(query: Tensor, key: Tensor, by: float) -> Tensor:
    root = abs(by) ** 0.5
    return score(query * copysign(root, by), key * root, 1.0)


def products_one_by_one(query: Tensor, key: Tensor, by: float) -> Tensor:
    """The components of a dot product summed from the last to the first."""
    columns = zip(reversed(query.unbind(-1)), reversed(key.unbind(-1)), strict=True)
    parts = [q[..., :, None] * k[..., None, :] for q, k in columns]
    return sum(parts[1:], start=parts[0]) * by


def einsum_mix(weights: Tensor, value: Tensor) -> Tensor:
    return torch.einsum("bhij,bhjd->bhid", weights, value)


def values_from_the_last(weights: Tensor, value: Tensor) -> Tensor:
    return weights.flip(-1) @ value.flip(-2)


def weights_rounded(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """The weights are rounded to the working dtype before they meet the values, as fused kernels do."""
    steps = Steps(mix=lambda weights, v: (weights.to(query.dtype) @ v.to(query.dtype)).to(v.dtype))
    return steps(query, key, value, **options)


def head_by_head(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    mask = options.pop("attn_mask", None)
    outputs = []
    for head in range(query.shape[1]):
        one = slice(head, head + 1)
        if mask is not None:
            options["attn_mask"] = mask[..., one, :, :] if mask.ndim > 2 and mask.shape[-3] > 1 else mask
        outputs.append(Steps()(query[:, one], key[:, one], value[:, one], **options))
    return torch.cat(outputs, 1)


def padded_to_eight(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Width and keys padded with zeros to multiples of 8; the padding is masked, the scale that of the real width."""
    scale = factor(query, options.pop("scale", None))
    width, length = -query.shape[-1] % 8, -key.shape[-2] % 8
    mask = _joined(query, key, options)
    masked = pad(mask, (0, length), value=-INFINITY)
    q, k, v = pad(query, (0, width)), pad(key, (0, width, 0, length)), pad(value, (0, 0, 0, length))
    return Steps()(q, k, v, attn_mask=masked, scale=scale)


def online(tile: int) -> Callable[..., Tensor]:
    """Keys in tiles: running maximum, sum and mixture are rescaled when the maximum rises."""

    def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        wide = accumulator(query.dtype)
        scale = factor(query, options.get("scale"))
        scores = score(query.to(wide), key.to(wide), scale) + _joined(query, key, options).to(wide)
        top = torch.full((*query.shape[:-1], 1), -INFINITY, dtype=wide)
        whole, mixed = torch.zeros_like(top), torch.zeros(*query.shape[:-1], value.shape[-1], dtype=wide)
        for s, v in zip(scores.split(tile, -1), value.to(wide).split(tile, -2), strict=True) if key.shape[-2] else ():
            higher = torch.maximum(top, s.detach().amax(-1, keepdim=True))
            e, kept = (s - or_zero(higher)).exp(), (top - or_zero(higher)).exp()
            whole, mixed, top = whole * kept + e.sum(-1, keepdim=True), mixed * kept + e @ v, higher
        return (mixed / torch.where(whole == 0, 1.0, whole)).to(query.dtype)

    return attention


def merged_halves(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """Even and odd keys answered apart, and merged through their log-sum-exps."""
    wide = accumulator(query.dtype)
    q, k, v = (x.to(wide) for x in (query, key, value))
    mask, scale = _joined(query, key, options).to(wide), factor(query, options.get("scale"))
    halves = [slice(start, None, 2) for start in range(2)]
    found = [
        Steps().answer(q, k[..., half, :], v[..., half, :], attn_mask=mask[..., half], scale=scale) for half in halves
    ]
    shares = softmax(torch.stack([lse for _, _, lse in found], -1))
    mixed = [output * shares[..., number, None] for number, (output, _, _) in enumerate(found)]
    return sum(mixed[1:], start=mixed[0]).to(query.dtype)


def _joined(query: Tensor, key: Tensor, options: dict[str, Any]) -> Tensor:
    """All masks as one float mask (B, H, Lq, Lk)."""
    zeros = torch.zeros(*query.shape[:-1], key.shape[-2], dtype=query.dtype)
    steps = Steps(score=lambda q, k, by: zeros, softmax=lambda scores: scores, mix=lambda scores, v: scores)
    masks = {name: option for name, option in options.items() if name != "scale"}
    return steps(query, key, key, **masks)


def _of_torch(name: str, function: Callable[..., Any]) -> Implementation:
    return Implementation(name, Claims(Scope.OP, SDPA_FEATURES | {Feature.KEY_PADDING}), torch_op(function))


def _of_steps(name: str, steps: Steps) -> Implementation:
    features = SDPA_FEATURES | {Feature.KEY_PADDING, Feature.WEIGHTS, Feature.LOG_SUM_EXP}
    run = torch_op(steps.answer, extras=("weights", "log_sum_exp"))
    return Implementation(name, Claims(Scope.OP, features), run)


def _of_numpy(name: str, style: Style) -> Implementation:
    def run(problem: Problem, device: str) -> Result:
        return Result(style(Inputs.of(problem)))

    features = (SDPA_FEATURES | {Feature.KEY_PADDING, Feature.VALID_LENS}) - NOT_OF_STYLES
    return Implementation(f"numpy.{name}", Claims(Scope.OP, features), run)


STEPS = {
    "plain": Steps(),
    "eager": Steps(wide=False, softmax=written_out),
    "eager.log-softmax": Steps(wide=False, softmax=exp_of_log_softmax),
    "eager.base-2": Steps(wide=False, softmax=powers_of_two),
    "eager.scale-on-both-sides": Steps(wide=False, score=scale_on_both_sides),
    "products-one-by-one": Steps(score=products_one_by_one),
    "values-from-the-last": Steps(mix=values_from_the_last),
    "einsum": Steps(mix=einsum_mix),
}
FUNCTIONS = {
    "weights-rounded": weights_rounded,
    "head-by-head": head_by_head,
    "padded-to-eight": padded_to_eight,
    "online-1": online(1),
    "online-7": online(7),
    "merged-halves": merged_halves,
}
STYLES = ("divided last", "merged 5", "online 64")


def _advice(name: str, steps: Steps) -> tuple[str, ...]:
    """Products that are kept one by one are more than the scores."""
    return (() if steps.wide else OVERFLOWS) + (("speed.memory-growth",) if name == "products-one-by-one" else ())


RIGHT: tuple[Right, ...] = (
    *(Right(_of_steps(name, steps), _advice(name, steps)) for name, steps in STEPS.items()),
    *(Right(_of_torch(name, function)) for name, function in FUNCTIONS.items()),
    *(Right(_of_numpy(name, CORRECT[name]), ADVICE) for name in STYLES),
)
