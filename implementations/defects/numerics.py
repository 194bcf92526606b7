"""Mistakes of chapter 10: digits that are lost, and numbers that should have stayed NaN."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise import steps as correct
from attention_conformance.implementations.builtin.stepwise.steps import INFINITY, Steps
from attention_conformance.implementations.defects.breaking import GRADIENT, NAN, PRECISION, breaks
from attention_conformance.implementations.defects.gradients import distorted
from attention_conformance.spec.conventions import Conventions, ProductPrecision, SoftmaxPrecision

breaks_precision = partial(breaks, severity=PRECISION)
breaks_digits_of_softmax = partial(breaks_precision, step="softmax")


@breaks_digits_of_softmax("numerics.working-precision", "numerics.bound", holds=("numerics.exact",))
def softmax_in_float32(scores: Tensor) -> Tensor:
    return correct.softmax(scores.float()).to(scores.dtype)


@breaks_precision("shapes.head-width", step="factor", holds=("scores.scale-explicit", "scores.scale-negative"))
def scale_rounded_to_float32(query: Tensor, scale: float | None) -> float:
    return float(torch.tensor(correct.factor(query, None))) if scale is None else scale


@breaks_digits_of_softmax("numerics.working-precision", "numerics.exact", holds=("shapes.output", "effects.repeatable"))
def epsilon_in_the_denominator(scores: Tensor) -> Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / (e.sum(-1, keepdim=True) + 1e-6)


@breaks_precision("masks.float", step="add_mask", holds=("masks.bool", "numerics.working-precision"))
def float_mask_rounded_to_half(scores: Tensor, mask: Tensor) -> Tensor:
    return correct.add_mask(scores, mask if mask.dtype is torch.bool else mask.to(torch.bfloat16).to(scores.dtype))


@breaks_precision("numerics.bound", step="mix", holds=("numerics.exact", "shapes.output"), dtype="float32")
def weights_rounded_to_bfloat16(weights: Tensor, value: Tensor) -> Tensor:
    return correct.mix(weights.to(torch.bfloat16).to(weights.dtype), value)


@breaks_digits_of_softmax("numerics.bound", holds=("numerics.accumulation", "softmax.over-keys"), dtype="bfloat16")
def weights_truncated_to_bfloat16(scores: Tensor) -> Tensor:
    weights = correct.softmax(scores.float())
    kept = (weights.detach().view(torch.int32) & -0x10000).view(torch.float32)
    return (weights + (kept - weights).detach()).to(scores.dtype)


@breaks_digits_of_softmax("numerics.bound", holds=("gradients.value", "softmax.over-keys"), dtype="bfloat16")
def score_gradient_truncated_to_bfloat16(scores: Tensor) -> Tensor:
    def kept(gradient: Tensor) -> Tensor:
        return (gradient.view(torch.int32) & -0x10000).view(torch.float32)

    return correct.softmax(distorted(scores.float(), kept)).to(scores.dtype)


@breaks("numerics.bound", step="softmax", holds=("gradients.key", "causal.square"), severity=GRADIENT, dtype="bfloat16")
def last_tile_of_the_triangle_without_gradient(scores: Tensor) -> Tensor:
    rows, keys = scores.shape[-2:]
    first = (rows - 1) // 64 * 64 if rows == keys and bool((scores[..., 0, 1:] == -INFINITY).all()) else 0

    def kept(gradient: Tensor) -> Tensor:
        gradient[..., first:, first:] *= 0.0 if first else 1.0
        return gradient

    return correct.softmax(distorted(scores, kept))


@breaks_precision("numerics.bound", step="score", holds=("gradients.query", "shapes.tile-edges"), dtype="bfloat16")
def scale_off_in_long_rows(query: Tensor, key: Tensor, by: float) -> Tensor:
    return correct.score(query, key, by * (1.02 if key.shape[-2] >= 512 else 1.0))


def _ten_bits(x: Tensor) -> Tensor:
    """The numbers with ten bits behind the point, as a matrix unit reads float32."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@breaks_precision("numerics.bound", step="score", holds=("numerics.exact", "shapes.output"), dtype="float32")
def ten_bits_of_mantissa(query: Tensor, key: Tensor, by: float) -> Tensor:
    lost_query, lost_key = (_ten_bits(x.detach()) - x.detach() for x in (query, key))
    return correct.score(query + lost_query, key + lost_key, by)


@breaks_precision(
    "numerics.bound",
    step="score",
    conventions=Conventions(product_precision=ProductPrecision.FLOAT32),
    holds=("numerics.exact", "shapes.output"),
    dtype="float32",
)
def ten_bits_for_claimed_float32(query: Tensor, key: Tensor, by: float) -> Tensor:
    return ten_bits_of_mantissa(query, key, by)


@breaks_digits_of_softmax(
    "numerics.bound",
    conventions=Conventions(softmax_precision=SoftmaxPrecision.FLOAT32),
    holds=("shapes.output", "effects.repeatable"),
)
def softmax_in_bfloat16_for_claimed_float32(scores: Tensor) -> Tensor:
    return correct.softmax(scores.to(torch.bfloat16)).to(scores.dtype)


@breaks("numerics.peaked-rows", step="score", holds=("scores.dot-product",))
def scores_clamped(query: Tensor, key: Tensor, by: float) -> Tensor:
    return correct.score(query, key, by).clamp(-20.0, 20.0)


@breaks_digits_of_softmax("numerics.peaked-rows", "numerics.exact", holds=("softmax.rows-sum-to-one", "masks.bool"))
def differences_clamped(scores: Tensor) -> Tensor:
    shifted = scores - scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    e = torch.where(scores == -INFINITY, 0.0, shifted.clamp(min=-10.0).exp())
    return e / e.sum(-1, keepdim=True).clamp(min=1e-30)


@breaks_digits_of_softmax("numerics.peaked-rows", holds=("scores.dot-product",), dtype="float16")
def log_sum_exp_rounded_to_half(scores: Tensor) -> Tensor:
    rounded = scores.half()
    return (rounded - rounded.logsumexp(-1, keepdim=True)).exp().to(scores.dtype)


@breaks("numerics.peaked-rows", "numerics.bound", step="softmax", holds=("numerics.exact", "values.single-key"))
def small_weights_dropped(scores: Tensor) -> Tensor:
    weights = correct.softmax(scores)
    return weights * (weights >= 1e-3)


@breaks_digits_of_softmax("numerics.accumulation", holds=("scores.dot-product",), dtype="float16")
def sum_kept_in_half(scores: Tensor) -> Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp().half()
    whole = torch.zeros_like(e[..., :1])
    for term in e.split(1, -1):
        whole = whole + term
    return (e / whole).float()


@breaks_precision(
    "numerics.accumulation", step="mix", holds=("scores.dot-product", "shapes.tile-edges"), dtype="float16"
)
def tiles_added_in_half(weights: Tensor, value: Tensor) -> Tensor:
    output = torch.zeros(*weights.shape[:-1], value.shape[-1], dtype=torch.float16)
    for p, v in zip(weights.split(64, -1), value.split(64, -2), strict=True):
        output = output + (p @ v).half()
    return output.to(weights.dtype)


@breaks_digits_of_softmax("numerics.accumulation", holds=("numerics.bound", "shapes.tile-edges"), dtype="bfloat16")
def row_summed_in_float16(scores: Tensor) -> Tensor:
    top = scores.amax(-1, keepdim=True)
    e = (scores - top.where(top > -INFINITY, 0.0)).exp()
    whole = torch.zeros_like(e[..., :1], dtype=torch.float16)
    for tile in e.split(128, -1):
        whole = whole + tile.sum(-1, keepdim=True).half()
    return e / whole.to(e.dtype)


@breaks_precision("numerics.accumulation", step="score", holds=("gradients.key", "numerics.bound"), dtype="bfloat16")
def key_gradient_kept_in_float16(query: Tensor, key: Tensor, by: float) -> Tensor:
    return correct.score(query, distorted(key, lambda gradient: gradient.half().to(gradient.dtype)), by)


@breaks_precision("numerics.accumulation", step="mix", holds=("gradients.value", "numerics.bound"), dtype="float16")
def value_gradient_added_in_half(weights: Tensor, value: Tensor) -> Tensor:
    mixed: Tensor = _MixedByTiles.apply(weights, value)  # type: ignore[no-untyped-call]
    return mixed


@breaks_precision("numerics.accumulation", step="score", holds=("gradients.query", "numerics.bound"), dtype="float16")
def query_gradient_added_in_half(query: Tensor, key: Tensor, by: float) -> Tensor:
    products: Tensor = _MixedByTiles.apply(key, query.mT)  # type: ignore[no-untyped-call]
    return products.mT * by


class _MixedByTiles(torch.autograd.Function):
    """A product of matrices, such as the mixture of values; the second's gradient adds up tiles of 16 in float16."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(weights, value)
        return weights @ value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        weights, value = ctx.saved_tensors
        whole = torch.zeros_like(value, dtype=torch.float16)
        for p, g in zip(weights.split(16, -2), gradient.split(16, -2), strict=True):
            whole = whole + (p.mT @ g).half()
        return gradient @ value.mT, whole.to(value.dtype)


@breaks("numerics.half-range", step="score", holds=("scores.dot-product",), severity=NAN, dtype="float16")
def products_in_half(query: Tensor, key: Tensor, by: float) -> Tensor:
    return (query.half() @ key.half().transpose(-1, -2)).float() * by


@breaks("numerics.score-precision", step="score", holds=("numerics.bound", "scores.dot-product"), dtype="bfloat16")
def scores_in_half(query: Tensor, key: Tensor, by: float) -> Tensor:
    return (query @ key.transpose(-1, -2) * by).to(torch.bfloat16).to(query.dtype)


@breaks("numerics.overflow-shows", holds=("scores.dot-product", "softmax.rows-sum-to-one"), dtype="float16")
def overflow_turned_into_zeros(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    def score(query: Tensor, key: Tensor, by: float) -> Tensor:
        return (query.half() @ key.half().transpose(-1, -2)).float() * by

    return torch.nan_to_num(Steps(score=score)(query, key, value, **options))


@breaks_precision("numerics.exact", holds=("numerics.half-range", "numerics.peaked-rows"), dtype="float16")
def float16_through_bfloat16(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    q, k, v = (x.to(torch.bfloat16).to(correct.accumulator(x.dtype)) for x in (query, key, value))
    return Steps()(q, k, v, **options).to(query.dtype)


@breaks("numerics.nan-propagates", step="mix", holds=("values.weighted-sum",))
def nan_made_a_number(weights: Tensor, value: Tensor) -> Tensor:
    return torch.nan_to_num(weights @ value)
