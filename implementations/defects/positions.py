"""Mistakes of chapter 21: rotary embeddings and ALiBi."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import (
    CallOptions,
    Steps,
    add_alibi,
    positions,
    rotate,
)
from attention_conformance.implementations.defects.breaking import GRADIENT, PRECISION, breaks, github
from attention_conformance.spec.features import Feature

ROTARY = {Feature.ROTARY, Feature.QUERY_START}
ALIBI = {Feature.ALIBI, Feature.QUERY_START}


def frequencies(count: int, base: float) -> Tensor:
    return torch.as_tensor(base ** (-torch.arange(count, dtype=torch.float64) / count))


def turn_by(rows: Tensor, angles: Tensor) -> Tensor:
    """Rows (B, H, L, d) rotated by angles (B, L, d / 2), component c with c + d / 2."""
    cosines, sines = (x[:, None].to(rows.dtype) for x in (angles.cos(), angles.sin()))
    first, second = rows.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, first * sines + second * cosines], -1)


breaks_rotary = partial(breaks, claims=ROTARY)
breaks_rotate = partial(breaks_rotary, step="rotate")


@breaks_rotate(
    "positions.rotary",
    "positions.rotary-start",
    holds=("positions.rotary-norm", "positions.rotary-shift", "scores.dot-product"),
).entry(
    does="Rotates adjacent components together, while it claims to pair the halves.",
    repair="Pair the components as the weights were trained, or reorder the columns of the projections.",
    hides="Position 0; heads of width 2; training from scratch, which learns either.",
    matters="A checkpoint of one pairing in the code of the other answers fluent nonsense.",
    links=github("warpfront/hipfire/pull/241", "karpathy/nanochat/issues/264"),
)
def adjacent_components_rotated(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    apart = torch.cat([rows[..., ::2], rows[..., 1::2]], -1)
    return torch.stack(rotate(apart, positions, base).chunk(2, -1), -1).flatten(-2)


@breaks_rotate(
    "positions.rotary", "positions.rotary-norm", "positions.rotary-shift", holds=("scores.dot-product", "causal.square")
).entry(
    does="Repeats each frequency for two adjacent components, and exchanges the halves.",
    repair="Lay the frequencies out as the components are paired.",
    hides="Position 0; heads of width 2.",
    links=github("raiyanyahya/how-to-train-your-gpt/issues/6"),
)
def frequencies_laid_out_for_adjacent_pairs(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    angles = positions[:, None, :, None] * frequencies(rows.shape[-1] // 2, base).repeat_interleave(2)
    first, second = rows.chunk(2, -1)
    exchanged = torch.cat([-second, first], -1)
    return rows * angles.cos().to(rows.dtype) + exchanged * angles.sin().to(rows.dtype)


@breaks_rotate("positions.rotary", holds=("positions.rotary-norm", "positions.rotary-shift")).entry(
    does="Rotates queries and keys in the opposite direction.",
    repair="Give the sine a minus in the first component of the pair, and a plus in the second.",
    hides="Training from scratch; checks that only the distance counts.",
)
def rotated_in_the_opposite_direction(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    return rotate(rows, -positions, base)


@breaks_rotate("positions.rotary", holds=("positions.rotary-norm", "positions.rotary-shift")).entry(
    does="Takes 10000 for the base, whatever base is given.",
    repair="Pass the base of the model on.",
    hides="Models of base 10000, which was the only one for years.",
    matters="A model for long texts, of a larger base, fails after a few tokens.",
)
def base_taken_for_granted(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    return rotate(rows, positions, 10000.0)


@breaks_rotate("positions.rotary", holds=("positions.rotary-norm", "positions.rotary-shift")).entry(
    does="Divides the number of the pair by the width, and not by the number of pairs.",
    repair="Let the exponent run over 2 c / d.",
    hides="Heads of width 2; training from scratch.",
    matters="The slowest pair rotates a hundred times too fast, and far positions look like near ones.",
)
def exponent_of_pairs_over_the_width(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    return rotate(rows, positions, base**0.5)


@breaks_rotate(
    "positions.rotary", "positions.rotary-norm", holds=("scores.dot-product", "positions.rotary-shift")
).entry(
    does="Multiplies cosines and sines by a factor that is meant for longer contexts.",
    repair="Rotate only; a factor for the scores belongs to the scale.",
    hides="Checks that only the distance counts; models that were trained with it.",
)
def cosines_and_sines_stretched(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    return 1.1 * rotate(rows, positions, base)


@breaks_rotary(
    "positions.rotary", "positions.rotary-norm", "positions.rotary-shift", holds=("scores.dot-product", "causal.square")
).entry(
    does="Rotates keys that have been rotated before.",
    repair="Store keys either rotated or not, and rotate only those that are not.",
    hides="Position 0; a first pass without a cache.",
    links=github("rajveer43/VeloxQuant-MLX/issues/389"),
)
def keys_rotated_twice(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "rotary_base" in options:
        at = torch.arange(key.shape[-2]).expand(len(key), -1)
        key = rotate(key, at, options["rotary_base"])
    return Steps()(query, key, value, **options)


@breaks_rotary(
    "positions.rotary", "positions.rotary-start", holds=("scores.dot-product", "causal.square", "values.weighted-sum")
).entry(
    does="Rotates the values as well.",
    repair="Rotate queries and keys only.",
    hides="Checks of the weights; a first token.",
    matters="The values depend on their positions, which no checkpoint expects.",
)
def values_rotated_too(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "rotary_base" in options:
        at, even = torch.arange(value.shape[-2]).expand(len(value), -1), value.shape[-1] // 2 * 2
        value = torch.cat([rotate(value[..., :even], at, options["rotary_base"]), value[..., even:]], -1)
    return Steps()(query, key, value, **options)


@breaks_rotary(
    "positions.rotary-start",
    "positions.rotary-shift",
    "positions.rotary-far",
    step="positions",
    holds=("positions.rotary", "positions.rotary-norm", "causal.square"),
).entry(
    does="Counts the positions of the queries from 0 in every call.",
    repair="Count them from where the sequence has come to: add `query_start`.",
    hides="Calls with the whole sequence.",
    links=github("RobertCsordas/moeut/pull/6"),
)
def queries_counted_from_zero(query: Tensor, key: Tensor, call: CallOptions) -> tuple[Tensor, Tensor, Tensor]:
    of_query, of_key, same_document = positions(query, key, call)
    return of_query - (call.query_start or 0), of_key, same_document


@breaks_rotary(
    "positions.rotary-start",
    "positions.rotary-far",
    step="positions",
    holds=("positions.rotary", "positions.rotary-shift", "causal.square"),
).entry(
    does="Places the last query at the last key, whatever `query_start` is given.",
    repair="Count the queries from `query_start`, and not back from the number of keys.",
    hides="Caches that hold exactly what came before.",
    links=github("rajveer43/VeloxQuant-MLX/issues/389"),
)
def queries_placed_by_the_number_of_keys(
    query: Tensor, key: Tensor, call: CallOptions
) -> tuple[Tensor, Tensor, Tensor]:
    of_query, of_key, same_document = positions(query, key, call)
    if call.query_start is None:
        return of_query, of_key, same_document
    return of_query - call.query_start + key.shape[-2] - query.shape[-2], of_key, same_document


@breaks_rotate(
    "positions.rotary-far",
    holds=("positions.rotary", "positions.rotary-start", "positions.rotary-norm"),
    severity=PRECISION,
).entry(
    does="Keeps positions in the half type of the model.",
    repair="Keep positions as integers, or in float32.",
    hides="Sequences of 256 tokens in bfloat16, of 2048 in float16.",
    matters="Neighbours far from the start share a position: quality falls with the length of the text.",
)
def positions_in_bfloat16(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    return rotate(rows, positions.bfloat16().double(), base)


@breaks_rotate("positions.rotary-far", holds=("positions.rotary-norm",), severity=PRECISION, dtype="float16").entry(
    does="Multiplies position and frequency in float16.",
    repair="Make angles, cosines and sines in float32, and round the cosines and sines.",
    hides="A few dozen positions, in half types.",
    matters="An angle of 4000 is off by more than a radian: the fastest pairs are noise.",
)
def angles_in_float16(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    angles = positions[..., None] * frequencies(rows.shape[-1] // 2, base)
    return turn_by(rows, angles.half().double())


class _ForwardOnly(torch.autograd.Function):
    """Rotates in the forward pass, and in the same direction in the backward pass."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, positions: Tensor, base: float) -> Tensor:
        ctx.positions, ctx.base = positions, base
        return rotate(rows, positions, base)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return rotate(gradients[0], ctx.positions, ctx.base), None, None


@breaks_rotate(
    "positions.rotary-gradient",
    holds=("positions.rotary", "positions.rotary-start", "gradients.query"),
    severity=GRADIENT,
).entry(
    does="Rotates the gradients forwards instead of back.",
    repair="Change the sign of the sines in the backward pass.",
    hides="Inference; the first token, whose angle is 0.",
    matters="A fused kernel trains queries and keys in directions that are wrong by twice the angle.",
)
def gradient_rotated_forwards(rows: Tensor, positions: Tensor, base: float) -> Tensor:
    rotated: Tensor = _ForwardOnly.apply(rows, positions, base)  # type: ignore[no-untyped-call]  # torch has no types here
    return rotated


breaks_alibi = partial(breaks, claims=ALIBI)
breaks_add_alibi = partial(breaks_alibi, step="add_alibi")


@breaks_add_alibi(
    "positions.alibi", "positions.alibi-causal", "positions.alibi-start", holds=("scores.dot-product", "masks.float")
).entry(
    does="Adds the slope times the distance.",
    repair="Subtract it.",
    hides="Checks that some bias is there; the weights of a single key.",
    links=github("meta-pytorch/attention-gym/pull/86"),
)
def distance_rewarded(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return add_alibi(scores, -slopes, ahead)


@breaks_add_alibi("positions.alibi", holds=("positions.alibi-causal", "scores.dot-product")).entry(
    does="Adds the slope times the position of the key, without the causal flag, too.",
    repair="Subtract the slope times the distance wherever later keys are visible.",
    hides="Decoders, where the two differ by a constant of the row.",
    links=github("ofirpress/attention_with_linear_biases/issues/5", "mosaicml/llm-foundry/issues/186"),
)
def bias_by_key_position_only(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return scores + slopes[:, None, None] * torch.arange(scores.shape[-1])


@breaks_add_alibi("positions.alibi", holds=("positions.alibi-causal", "scores.dot-product")).entry(
    does="Subtracts nothing from the scores of later keys.",
    repair="Subtract the slope times the distance on both sides.",
    hides="Decoders.",
)
def later_keys_without_penalty(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return add_alibi(scores, slopes, ahead.clamp(max=0))


@breaks_add_alibi("positions.alibi-start", holds=("positions.alibi", "positions.alibi-causal")).entry(
    does="Builds the bias for the length of the queries, which for a single one is 0.",
    repair="Build it for queries and keys, at the positions where they stand.",
    hides="Calls with the whole sequence.",
    matters="While it generates from a cache, the model has no sense of order at all.",
    links=github("keras-team/keras-hub/pull/2977", "keras-team/keras-hub/issues/2861"),
)
def no_penalty_for_a_single_query(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return scores if scores.shape[-2] == 1 else add_alibi(scores, slopes, ahead)


@breaks_add_alibi(
    "positions.alibi-start", "positions.alibi-far", holds=("positions.alibi", "positions.alibi-causal")
).entry(
    does="Counts distances from the number of the row.",
    repair="Count them from the position of the query: add `query_start`.",
    hides="Calls with the whole sequence.",
    links=github("vllm-project/vllm/pull/945"),
)
def distance_from_the_number_of_the_row(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    queries, keys = (torch.arange(n) for n in scores.shape[-2:])
    return add_alibi(scores, slopes, (keys - queries[:, None])[None])


@breaks_alibi(
    "positions.alibi",
    "positions.alibi-causal",
    holds=("scores.dot-product", "scores.scale-explicit", "scores.bias-after-scale"),
).entry(
    does="Multiplies the penalty by the scale, along with the products.",
    repair="Scale the products, then subtract the penalty.",
    hides="A scale of 1.",
)
def penalty_scaled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    scale = abs(query.shape[-1] ** -0.5 if options.get("scale") is None else options["scale"])
    if "alibi_slopes" in options:
        options["alibi_slopes"] = options["alibi_slopes"] * scale
    return Steps()(query, key, value, **options)


@breaks_add_alibi("positions.alibi", holds=("positions.alibi-far", "positions.alibi-causal")).entry(
    does="Lays the slopes along the queries wherever there are as many queries as heads.",
    repair="Give the slopes two axes of length 1 behind that of the heads.",
    hides="Sequences longer or shorter than there are heads.",
)
def slopes_along_the_queries(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    along = slopes[:, None] if len(slopes) == scores.shape[-2] else slopes[:, None, None]
    return scores - along * ahead.abs()[:, None]


@breaks_add_alibi("positions.alibi-far", holds=("positions.alibi", "positions.alibi-start"), severity=PRECISION).entry(
    does="Counts distances in a half type.",
    repair="Count them in integers or in float32.",
    hides="Sequences of up to 256 tokens.",
    matters="Groups of far keys get the same penalty, and jump together from token to token.",
)
def distances_in_bfloat16(scores: Tensor, slopes: Tensor, ahead: Tensor) -> Tensor:
    return add_alibi(scores, slopes, ahead.bfloat16().to(scores.dtype))
