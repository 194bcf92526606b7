"""Right implementations of groups, windows and softcaps in unusual styles."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_conformance.implementations.adapters.mha_interface import MHA_FEATURES, inputs_of
from attention_conformance.implementations.adapters.op_options import extra_options
from attention_conformance.implementations.adapters.tensors import Tensors
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.stepwise.extended_layers import GroupedLayer
from attention_conformance.implementations.builtin.stepwise.step_options import CallOptions
from attention_conformance.implementations.builtin.stepwise.steps import (
    Steps,
    add_bottom_right,
    add_window,
    cap,
    factor,
    positions,
    repeat_kv_tiled,
    score,
    softmax,
)
from attention_conformance.implementations.defects.grouped import GROUPED, TILED
from attention_conformance.implementations.defects.softcap import SOFTCAP
from attention_conformance.implementations.defects.window import INCLUDING, STARTED, Window
from attention_conformance.spec.conventions import Alignment, Conventions, EmptyRow, SoftmaxPrecision
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.selftest.reference.family_styles import cap_by_exponentials
from attention_conformance.tests.selftest.reference.styles import plain_softmax, written_out
from attention_conformance.tests.selftest.right.right import BOTH, module, op

MASKS = frozenset({Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.MASK_GRADIENT, Feature.KEY_PADDING})
STEEP = 20.0
"""Where the hyperbolic tangent is 1 in float64, too."""


def stacked(rows: Tensor, num_kv_heads: int) -> Tensor:
    """(B, H, Lq, d) -> (B, Hk, g Lq, d)."""
    whole_groups(rows.shape[1], num_kv_heads)
    return rows.reshape(len(rows), num_kv_heads, -1, rows.shape[-1])


def whole_groups(num_heads: int, num_kv_heads: int) -> int:
    groups, rest = divmod(num_heads, num_kv_heads)
    if rest:
        raise ValueError(f"{num_heads} query heads are no multiple of {num_kv_heads} key heads")
    return groups


def one_product(query: Tensor, key: Tensor, by: float) -> Tensor:
    """The queries of a group stacked into g Lq rows, and the keys not repeated."""
    return score(stacked(query, key.shape[1]), key, by).reshape(*query.shape[:-1], key.shape[-2])


def one_mixture(weights: Tensor, value: Tensor) -> Tensor:
    return (stacked(weights, value.shape[1]) @ value).reshape(*weights.shape[:-1], value.shape[-1])


def grouped_einsum(query: Tensor, key: Tensor, by: float) -> Tensor:
    members = query.unflatten(1, (key.shape[1], -1))
    return torch.einsum("bkgid,bkjd->bkgij", members, key).flatten(1, 2) * by


def grouped_mixture(weights: Tensor, value: Tensor) -> Tensor:
    members = weights.unflatten(1, (value.shape[1], -1))
    return torch.einsum("bkgij,bkjd->bkgid", members, value).flatten(1, 2)


def expanded(rows: Tensor, num_heads: int) -> Tensor:
    """The transpose of an expanded view is a sum in the working dtype."""
    return rows[:, :, None].expand(-1, -1, whole_groups(num_heads, rows.shape[1]), -1, -1).flatten(1, 2)


def unshared(rows: Tensor, num_heads: int) -> Tensor:
    return rows


def windows_cut_out(tile: int) -> Callable[..., Tensor]:
    """Queries in tiles, and for each the keys that one of its windows may reach."""

    def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        start = options.pop("query_start", 0)
        left, right = options.get("window_size", (-1, -1))
        outputs = []
        for first in range(0, query.shape[-2], tile):
            rows = query[..., first : first + tile, :]
            end = start + first + rows.shape[-2] + right if right >= 0 else key.shape[-2]
            begin = min(max(0, start + first - left), key.shape[-2]) if left >= 0 else 0
            near = slice(begin, max(begin, end))
            at = start + first - begin
            outputs.append(Steps()(rows, key[..., near, :], value[..., near, :], query_start=at, **options))
        return torch.cat(outputs, -2)

    return attention


def additive_window(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    """As a sum of zeros and minus infinities."""
    return scores + add_window(torch.zeros(len(ahead), 1, *ahead.shape[1:], dtype=scores.dtype), ahead, window)


def including_window(scores: Tensor, ahead: Tensor, window: Window) -> Tensor:
    left, right = window
    return add_window(scores, ahead, (left - 1 if left >= 0 else -1, right))


def bottom_right_places(query: Tensor, key: Tensor, call: CallOptions) -> tuple[Tensor, Tensor, Tensor]:
    of_query, of_key, same_document = positions(query, key, call)
    return of_query + (key.shape[-2] - query.shape[-2] if call.query_start is None else 0), of_key, same_document


def softmax_of_finite(scores: Tensor) -> Tensor:
    """The mean for a row of minus infinities."""
    return torch.softmax(scores.clamp(min=torch.finfo(scores.dtype).min), -1)


def tanh_by_expm1(scores: Tensor, softcap: float) -> Tensor:
    e = torch.expm1(2 * (scores / softcap).clamp(-STEEP, STEEP))
    return softcap * (e / (e + 2))


def cap_in_single(scores: Tensor, softcap: float) -> Tensor:
    return cap(scores.float(), softcap).to(scores.dtype)


def softmax_in_single(scores: Tensor) -> Tensor:
    return softmax(scores.float()).to(scores.dtype)


class SavedCap(torch.autograd.Function):
    """Its backward pass takes the slope of the capped scores, which are at hand."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, softcap: float) -> Tensor:
        capped = cap(scores, softcap)
        ctx.save_for_backward(capped)
        ctx.softcap = softcap
        return capped

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ratio = ctx.saved_tensors[0] / ctx.softcap
        return gradient * (1 - ratio) * (1 + ratio), None


def saved_cap(scores: Tensor, softcap: float) -> Tensor:
    capped: Tensor = SavedCap.apply(scores, softcap)  # type: ignore[no-untyped-call]
    return capped


def cap_within_the_scale(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """The division by the cap is part of the scale."""
    softcap = options.get("softcap", 1.0)
    by = factor(query, options.pop("scale", None)) / softcap
    steps = Steps(cap=lambda scores, softcap: softcap * torch.tanh(scores))
    return steps(query, key, value, scale=by, **options)


def call_layer(layer: nn.Module, given: Tensors, problem: Problem) -> Any:
    masks = {name: given[name] for name in ("attn_mask", "key_padding_mask") if name in given}
    return layer(*inputs_of(given), **masks, is_causal=problem.causal, **extra_options(problem, given))


def _op(name: str, steps: Steps, features: frozenset[Feature], **conventions: Any) -> Implementation:
    return op(name, steps.answer, features, extras=BOTH, conventions=Conventions(**conventions))


def _empty(answer: EmptyRow) -> dict[str, Any]:
    return {f"empty_row_{kind}": answer for kind in ("bool", "float", "padding", "causal")}


FROM_THE_END = Steps(positions=bottom_right_places, add_causal=add_bottom_right)
BOTTOM_RIGHT: dict[str, Any] = {"causal_alignment": Alignment.BOTTOM_RIGHT}
NAN, MEAN = ({**BOTTOM_RIGHT, **_empty(answer)} for answer in (EmptyRow.NAN, EmptyRow.UNIFORM))
SINGLE = Steps(cap=cap_in_single, softmax=softmax_in_single)
RIGHT: tuple[Implementation, ...] = (
    _op("groups.one-product", Steps(repeat_kv=unshared, score=one_product, mix=one_mixture), GROUPED),
    _op("groups.einsum", Steps(repeat_kv=unshared, score=grouped_einsum, mix=grouped_mixture), GROUPED),
    _op("groups.expanded", Steps(wide=False, repeat_kv=expanded, softmax=written_out), GROUPED),
    _op("groups.tiled", Steps(repeat_kv=repeat_kv_tiled), GROUPED, group_order=TILED.group_order),
    module("layer", GroupedLayer, call_layer, MHA_FEATURES | GROUPED | STARTED | SOFTCAP),
    op("window.row-by-row", windows_cut_out(1), STARTED, without=MASKS),
    op("window.tiles", windows_cut_out(4), STARTED, without=MASKS),
    _op("window.additive", Steps(wide=False, add_window=additive_window), STARTED),
    _op("window.including", Steps(add_window=including_window), STARTED, window_count=INCLUDING.window_count),
    _op("window.from-the-end", replace(FROM_THE_END, softmax=plain_softmax), STARTED, **NAN),
    _op("window.mean-of-nothing", replace(FROM_THE_END, softmax=softmax_of_finite), STARTED, **MEAN),
    _op("softcap.expm1", Steps(cap=tanh_by_expm1), SOFTCAP),
    _op("softcap.logistic", Steps(cap=cap_by_exponentials), SOFTCAP),
    _op("softcap.saved", Steps(cap=saved_cap), SOFTCAP),
    _op("softcap.eager", Steps(wide=False, softmax=written_out), SOFTCAP),
    op("softcap.within-the-scale", cap_within_the_scale, SOFTCAP),
    _op("softcap.single", SINGLE, SOFTCAP, softmax_precision=SoftmaxPrecision.FLOAT32),
)
ADVICE = {"softcap.logistic": ("softcap.small-scores",)}
"""See `right.ADVICE`."""
