"""Mistakes of chapter 29: norms of queries and keys, their gains, and the way back through them."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.builtin.stepwise.steps import Steps, norm
from attention_conformance.implementations.defects.breaking import GRADIENT, NAN, PRECISION, breaks
from attention_conformance.spec.features import Feature

NORMS = frozenset({Feature.QK_NORM, Feature.NORM_EPSILON})
GAINS = ("query_norm", "key_norm")
LEARNED = ("qk-norm.gradient", "qk-norm.gain-gradient")
EVERYWHERE = ("qk-norm.scores", "qk-norm.epsilon", *LEARNED)
breaks_norms = partial(breaks, claims=NORMS)
breaks_norm = partial(breaks_norms, step="norm")
breaks_gradient = partial(breaks_norm, severity=GRADIENT)


@breaks_norms(*EVERYWHERE, "qk-norm.range", holds=("scores.dot-product", "qk-norm.zeros"))
def key_not_normalised(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    gains, epsilon = [options.pop(name, None) for name in GAINS], options.pop("norm_epsilon", None) or 1e-6
    if gains[0] is not None:
        query = norm(query.float() if query.dtype.itemsize < 4 else query, gains[0], epsilon).to(query.dtype)
    return Steps()(query, key, value, **options)


@breaks_norms(*EVERYWHERE, "qk-norm.range", holds=("qk-norm.zeros", "scores.dot-product"), raises=True)
def key_by_the_gain_of_the_query(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "query_norm" in options:
        options["key_norm"] = options["query_norm"]
    return Steps()(query, key, value, **options)


@breaks_norms(*EVERYWHERE, "qk-norm.range", "qk-norm.zeros", holds=("scores.dot-product",))
def values_normalised_as_well(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "key_norm" in options:
        value = norm(value.to(torch.float64), None, 1e-6).to(value.dtype)
    return Steps()(query, key, value, **options)


@breaks_norm(*EVERYWHERE, "qk-norm.range", holds=("qk-norm.zeros",))
def norm_over_the_tokens(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return rows * torch.rsqrt(rows.square().mean(-2, keepdim=True) + epsilon) * gain


@breaks_norm(*EVERYWHERE, "qk-norm.range", holds=("qk-norm.zeros", "scores.dot-product"))
def norm_over_all_heads(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return rows * torch.rsqrt(rows.square().mean((1, 3), keepdim=True) + epsilon) * gain


@breaks_norm(*EVERYWHERE, "qk-norm.range", holds=("qk-norm.zeros", "scores.dot-product"))
def divided_by_the_length(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return rows * torch.rsqrt(rows.square().sum(-1, keepdim=True) + epsilon) * gain


@breaks_norm(*EVERYWHERE, "qk-norm.range", holds=("qk-norm.zeros",))
def mean_subtracted_in_a_root_mean_square(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return norm(rows - rows.mean(-1, keepdim=True), gain, epsilon)


@breaks_norm(*EVERYWHERE, "qk-norm.range", holds=("qk-norm.zeros", "scores.dot-product"))
def one_added_to_the_gain(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return norm(rows, 1.0 + gain, epsilon)


@breaks_norm(*EVERYWHERE, "qk-norm.range", holds=("qk-norm.zeros", "scores.dot-product"))
def gain_left_out(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return norm(rows, None, epsilon) + 0.0 * gain


@breaks_norm("qk-norm.epsilon", "qk-norm.gradient", "qk-norm.range", holds=("qk-norm.zeros", "scores.dot-product"))
def epsilon_outside_the_root(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    size = rows.square().mean(-1, keepdim=True)
    root = torch.where(size > 0.0, size, 1.0).sqrt() * (size > 0.0)
    return rows / (root + epsilon) * gain


@breaks_norm("qk-norm.epsilon", holds=("qk-norm.scores", "qk-norm.range", "qk-norm.zeros"))
def epsilon_built_in(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return norm(rows, gain, 1e-6)


@breaks_norm("qk-norm.zeros", "qk-norm.epsilon", "qk-norm.range", holds=("scores.dot-product",), severity=NAN)
def epsilon_forgotten(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return rows / rows.square().mean(-1, keepdim=True).sqrt() * gain


@breaks_norms("qk-norm.range", holds=("qk-norm.zeros", "scores.dot-product"), severity=PRECISION, dtype="float16")
def norm_in_half_precision(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    gains, epsilon = [options.pop(name, None) for name in GAINS], options.pop("norm_epsilon", None) or 1e-6
    if gains[0] is not None:
        query, key = norm(query, gains[0], epsilon), norm(key, gains[1], epsilon)
    return Steps()(query, key, value, **options)


@breaks(
    "qk-norm.rotary",
    claims=NORMS | {Feature.ROTARY},
    holds=("qk-norm.scores", "qk-norm.epsilon", "positions.rotary"),
)
def norm_after_the_rotation(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    steps, normed, wide = Steps(), "query_norm" in options, query.dtype if query.dtype.itemsize >= 4 else torch.float32
    if normed and options.get("rotary_base"):
        at, base = torch.arange(max(query.shape[-2], key.shape[-2])), options.pop("rotary_base")
        start = options.get("query_start") or 0
        query = steps.rotate(query.to(wide), at[None, : query.shape[-2]] + start, base).to(query.dtype)
        key = steps.rotate(key.to(wide), at[None, : key.shape[-2]], base).to(key.dtype)
    return steps(query, key, value, **options)


@breaks(
    "qk-norm.grouped",
    claims=NORMS | {Feature.GROUPED},
    holds=("qk-norm.scores", "qk-norm.epsilon", "grouped.order"),
)
def keys_normalised_in_as_many_parts_as_queries(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    heads, shared, width = query.shape[1], key.shape[1], key.shape[-1]
    steps, parts = Steps(), heads // shared

    def in_parts(rows: Tensor, gain: Tensor | None, epsilon: float) -> Tensor:
        if rows.shape[1] == heads or width % parts:
            return norm(rows, gain, epsilon)
        unit = norm(rows.unflatten(-1, (parts, -1)), None, epsilon).flatten(-2)
        return unit if gain is None else unit * gain

    return (
        Steps(norm=in_parts)(query, key, value, **options) if heads != shared else steps(query, key, value, **options)
    )


@breaks_norms(*EVERYWHERE, "qk-norm.range", holds=("qk-norm.zeros", "scores.scale-default"))
def normalised_scores_not_scaled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    if "query_norm" in options and options.get("scale") is None:
        options["scale"] = 1.0
    return Steps()(query, key, value, **options)


@breaks_gradient("qk-norm.gradient", holds=("qk-norm.scores", "qk-norm.gain-gradient"))
def size_out_of_the_graph(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    return rows * torch.rsqrt(rows.detach().square().mean(-1, keepdim=True) + epsilon) * gain


@breaks_gradient("qk-norm.gain-gradient", holds=("qk-norm.scores", "qk-norm.gradient"))
def gradient_of_the_gain_from_the_first_head(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    unit = norm(rows, None, epsilon)
    return torch.cat([unit[:, :1] * gain, unit[:, 1:] * gain.detach()], 1)


@breaks_gradient("qk-norm.gain-gradient", holds=("qk-norm.scores", "qk-norm.gradient"))
def gradient_of_the_gain_averaged_over_samples(rows: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    averaged = gain / max(1, len(rows))
    return norm(rows, averaged + (gain - averaged).detach(), epsilon)
