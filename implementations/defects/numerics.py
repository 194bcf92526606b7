"""Mistakes of chapter 10: digits that are lost, and numbers that should have stayed NaN."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import (
    INFINITY,
    Steps,
    accumulator,
    add_mask,
    factor,
    mix,
    score,
    softmax,
)
from attention_conformance.implementations.defects.breaking import NAN, PRECISION, breaks, github

breaks_precision = partial(breaks, severity=PRECISION)


@breaks_precision("numerics.working-precision", "numerics.bound", step="softmax", holds=("numerics.exact",)).entry(
    does="Runs the softmax of float64 inputs in float32, while it claims the working precision.",
    repair="Widen half types only, and never narrow.",
    hides="Tolerances of float32, and inputs in float32.",
    matters="Gradients checked by finite differences, and science in float64, lose 29 bits.",
    links=github("huggingface/transformers/issues/48459", "jax-ml/jax/pull/34114"),
)
def softmax_in_float32(scores: Tensor) -> Tensor:
    return softmax(scores.float()).to(scores.dtype)


@breaks_precision("shapes.head-width", step="factor", holds=("scores.scale-explicit", "scores.scale-negative")).entry(
    does="Rounds the default scale to float32.",
    repair="Keep the scale in the dtype of the inputs.",
    hides="Widths that are powers of 4, whose scale is exact; inputs in float32.",
)
def scale_rounded_to_float32(query: Tensor, scale: float | None) -> float:
    return float(torch.tensor(factor(query, None))) if scale is None else scale


@breaks_precision(
    "numerics.working-precision", "numerics.exact", step="softmax", holds=("shapes.output", "effects.repeatable")
).entry(
    does="Adds 1e-6 to the sum of the exponentials.",
    repair="Divide by the sum as it is: with the maximum subtracted it is at least 1.",
    hides="Tolerances of 1e-5.",
    matters="Rows sum to a little less than 1, and log-probabilities drift.",
)
def epsilon_in_the_denominator(scores: Tensor) -> Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / (e.sum(-1, keepdim=True) + 1e-6)


@breaks_precision("masks.float", step="add_mask", holds=("masks.bool", "numerics.working-precision")).entry(
    does="Rounds a float mask to half precision.",
    repair="Add the mask in the precision of the scores.",
    hides="Masks of 0 and minus infinity; biases that half types can hold.",
    matters="Biases of position lose their digits where a mask is cast for a kernel.",
)
def float_mask_rounded_to_half(scores: Tensor, mask: Tensor) -> Tensor:
    return add_mask(scores, mask if mask.dtype is torch.bool else mask.to(torch.bfloat16).to(scores.dtype))


@breaks_precision("numerics.bound", step="mix", holds=("numerics.exact", "shapes.output"), dtype="float32").entry(
    does="Rounds the weights of float32 inputs to bfloat16 before they multiply the values.",
    repair="Keep the weights of float32 inputs in float32.",
    hides="Tolerances of 1e-2, and inputs in bfloat16.",
    matters="Speed is bought with digits, without notice; a float32 run to compare with is no comparison.",
)
def weights_rounded_to_bfloat16(weights: Tensor, value: Tensor) -> Tensor:
    return mix(weights.to(torch.bfloat16).to(weights.dtype), value)


def _ten_bits(x: Tensor) -> Tensor:
    """The numbers with ten bits behind the point, as a matrix unit reads float32."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


@breaks_precision("numerics.bound", step="score", holds=("numerics.exact", "shapes.output"), dtype="float32").entry(
    does="Multiplies float32 with ten bits of mantissa, as a matrix unit does by default.",
    repair="Request full precision, or document that float32 means less here.",
    hides="Tolerances of 1e-2; small integers; a reference that runs on the same unit.",
    links=github("pytorch/pytorch/issues/138556", "triton-lang/triton/issues/1671"),
)
def ten_bits_of_mantissa(query: Tensor, key: Tensor, by: float) -> Tensor:
    lost_query, lost_key = (_ten_bits(x.detach()) - x.detach() for x in (query, key))
    return score(query + lost_query, key + lost_key, by)


@breaks("numerics.peaked-rows", step="score", holds=("scores.dot-product",)).entry(
    does="Clamps the scores to 20 either way.",
    repair="Leave the scores as they are: with the maximum subtracted none overflows.",
    hides="Scores below 20, all that random normal inputs give.",
    matters="Peaked attention becomes flat, in models that need it most.",
)
def scores_clamped(query: Tensor, key: Tensor, by: float) -> Tensor:
    return score(query, key, by).clamp(-20.0, 20.0)


@breaks_precision(
    "numerics.peaked-rows", "numerics.exact", step="softmax", holds=("softmax.rows-sum-to-one", "masks.bool")
).entry(
    does="Lets no score fall more than 10 below the maximum of its row.",
    repair="Let small exponentials underflow to 0.",
    hides="Rows whose scores lie within 10.",
)
def differences_clamped(scores: Tensor) -> Tensor:
    shifted = scores - scores.amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    e = torch.where(scores == -INFINITY, 0.0, shifted.clamp(min=-10.0).exp())
    return e / e.sum(-1, keepdim=True).clamp(min=1e-30)


@breaks("numerics.peaked-rows", "numerics.bound", step="softmax", holds=("numerics.exact", "values.single-key")).entry(
    does="Drops weights below a thousandth.",
    repair="Keep every weight, or claim that attention is approximate.",
    hides="Few keys with similar scores.",
    matters="Long sequences consist of small weights; rows no longer sum to 1.",
)
def small_weights_dropped(scores: Tensor) -> Tensor:
    weights = softmax(scores)
    return weights * (weights >= 1e-3)


@breaks_precision("numerics.accumulation", step="softmax", holds=("scores.dot-product",), dtype="float16").entry(
    does="Sums the exponentials key by key in half precision.",
    repair="Sum in float32.",
    hides="Up to some hundred keys, and inputs in float32.",
    matters="At 2048 the sum stops growing: long inputs get outputs that are too large.",
    links=github("AI-Hypercomputer/maxtext/pull/1225", "apple/axlearn/pull/18", "tinygrad/tinygrad/pull/12280"),
)
def sum_kept_in_half(scores: Tensor) -> Tensor:
    e = (scores - scores.amax(-1, keepdim=True)).exp().half()
    whole = torch.zeros_like(e[..., :1])
    for term in e.split(1, -1):
        whole = whole + term
    return (e / whole).float()


@breaks_precision(
    "numerics.accumulation", step="mix", holds=("scores.dot-product", "shapes.tile-edges"), dtype="float16"
).entry(
    does="Adds the outputs of tiles of 64 keys in half precision.",
    repair="Keep what tiles are added to in float32, and round once at the end.",
    hides="Up to some thousand keys, and values whose signs differ: the roundings cancel.",
)
def tiles_added_in_half(weights: Tensor, value: Tensor) -> Tensor:
    output = torch.zeros(*weights.shape[:-1], value.shape[-1], dtype=torch.float16)
    for p, v in zip(weights.split(64, -1), value.split(64, -2), strict=True):
        output = output + (p @ v).half()
    return output.to(weights.dtype)


@breaks("numerics.half-range", step="score", holds=("scores.dot-product",), severity=NAN, dtype="float16").entry(
    does="Forms the product of query and key in float16, and scales it afterwards.",
    repair="Scale the query first, or accumulate in float32.",
    hides="Products below 65504, and dtypes of wider range.",
    matters="Models with large activations overflow, though their scaled scores are small.",
    links=github("patrick-kidger/equinox/pull/274", "ggml-org/llama.cpp/issues/7805", "pytorch/pytorch/pull/176559"),
)
def products_in_half(query: Tensor, key: Tensor, by: float) -> Tensor:
    return (query.half() @ key.half().transpose(-1, -2)).float() * by


@breaks_precision("numerics.exact", holds=("numerics.half-range", "numerics.peaked-rows"), dtype="float16").entry(
    does="Casts float16 to bfloat16 on the way in.",
    repair="Widen float16 to float32, which holds it exactly.",
    hides="Small integers and powers of two; tolerances of 1e-2.",
)
def float16_through_bfloat16(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    q, k, v = (x.to(torch.bfloat16).to(accumulator(x.dtype)) for x in (query, key, value))
    return Steps()(q, k, v, **options).to(query.dtype)


@breaks("numerics.nan-propagates", step="mix", holds=("values.weighted-sum",)).entry(
    does="Replaces NaN in the output by 0.",
    repair="Give zeros to rows without keys only, and let other NaN through.",
    hides="Inputs without NaN.",
    matters="A diverging model looks healthy one layer later.",
    links=github("pytorch/pytorch/issues/141128"),
)
def nan_made_a_number(weights: Tensor, value: Tensor) -> Tensor:
    return torch.nan_to_num(weights @ value)
