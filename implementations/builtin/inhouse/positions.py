"""Attention that knows positions: sinusoids, rotary embeddings, ALiBi and its slopes, relative biases."""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.sdpa import SDPA_FEATURES
from attention_conformance.spec.conventions import AlibiRule, Conventions, RotaryPairing, SinusoidOrder
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array


def sinusoids(length: int, width: int, order: SinusoidOrder = SinusoidOrder.INTERLEAVED) -> Array:
    """(length, width): sines and cosines of the positions, to be added to embeddings of an even width."""
    angles = np.arange(length)[:, None] / 10000.0 ** (np.arange(0, width, 2) / width)
    parts = np.sin(angles), np.cos(angles)
    apart = order is SinusoidOrder.HALVES
    joined = np.concatenate(parts, -1) if apart else np.stack(parts, -1).reshape(length, width)
    return joined.astype(np.float32)


def alibi_slopes(num_heads: int, rule: AlibiRule = AlibiRule.INTERLEAVED) -> Array:
    """(num_heads,): the slope of each head."""
    below = 2 ** math.floor(math.log2(num_heads))
    if rule is AlibiRule.GEOMETRIC or below == num_heads:
        return (2.0 ** (-8.0 / num_heads * np.arange(1, num_heads + 1))).astype(np.float32)
    between = alibi_slopes(2 * below)[::2]
    return np.concatenate([alibi_slopes(below), between[: num_heads - below]])


def rotated(rows: Tensor, places: Tensor, base: float, pairing: RotaryPairing = RotaryPairing.HALVES) -> Tensor:
    """(B, H, L, d) with each pair of components rotated by the angle of its position (L,), worked out in float64."""
    count = rows.shape[-1] // 2
    shape = (2, count) if pairing is RotaryPairing.HALVES else (count, 2)
    pairs = rows.unflatten(-1, shape)
    axis = -2 if pairing is RotaryPairing.HALVES else -1
    first, second = pairs.unbind(axis)
    frequencies = base ** (-torch.arange(count, dtype=torch.float64, device=rows.device) / count)
    angles = places[:, None] * frequencies
    cosines, sines = angles.cos().to(rows.dtype), angles.sin().to(rows.dtype)
    moved = first * cosines - second * sines, first * sines + second * cosines
    return torch.stack(moved, axis).flatten(-2)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    key_padding_mask: Tensor | None = None,
    rotary_base: float | None = None,
    alibi_slopes: Tensor | None = None,
    relative_bias: Tensor | None = None,
    query_start: int | None = None,
    pairing: RotaryPairing = RotaryPairing.HALVES,
) -> tuple[Tensor, Tensor, Tensor]:
    """softmax(scale * Q K^T + biases) V for every sample and head; half types are worked on in float32.

    Args:
        query: (B, H, Lq, d_k); its first row stands at position `query_start` of the key sequence, 0 by default.
        key: (B, H, Lk, d_k).
        value: (B, H, Lk, d_v).
        attn_mask: broadcasts to (B, H, Lq, Lk); True = may attend, or numbers that are added to the scores.
        is_causal: no query sees a later key.
        scale: multiplies the scores; None is 1 / sqrt(d_k).
        key_padding_mask: (B, Lk), True = may attend.
        rotary_base: of the angles by which query and key are rotated; None does not rotate them.
        alibi_slopes: (H,), multiples of the distance that are taken off the scores.
        relative_bias: (H, 2 R + 1), added by distance, the outermost entries to all that are farther than R.
        query_start: the position of the first query.
        pairing: which components of query and key are rotated together.

    Returns:
        The output (B, H, Lq, d_v), the weights (B, H, Lq, Lk) and the log-sum-exp (B, H, Lq). A query that may attend
        to no key gets zeros.
    """
    dtype, wide = query.dtype, torch.float32 if query.dtype.itemsize < 4 else query.dtype
    q, k, v = (x.to(wide) for x in (query, key, value))
    places = torch.arange(query.shape[-2], device=query.device) + (query_start or 0)
    key_places = torch.arange(key.shape[-2], device=query.device)
    ahead = key_places - places[:, None]
    if rotary_base is not None:
        q, k = (rotated(x, at, rotary_base, pairing) for x, at in ((q, places), (k, key_places)))
    scores = q @ k.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes.to(wide)[:, None, None] * ahead.abs()
    if relative_bias is not None:
        most = relative_bias.shape[-1] // 2
        scores = scores + relative_bias.to(wide)[:, ahead.clamp(-most, most) + most]
    seen = _visible(scores, ahead, attn_mask, is_causal, key_padding_mask)
    if attn_mask is not None and attn_mask.dtype is not torch.bool:
        scores = scores + attn_mask
    weights, log_sum_exp = _softmax(scores, seen)
    return (weights @ v).to(dtype), weights.to(dtype), log_sum_exp.to(dtype)


def _visible(
    scores: Tensor, ahead: Tensor, attn_mask: Tensor | None, is_causal: bool, key_padding_mask: Tensor | None
) -> Tensor:
    """(B, H, Lq, Lk): the keys that all masks leave."""
    seen = torch.ones_like(scores, dtype=torch.bool)
    if attn_mask is not None:
        seen = seen & (attn_mask if attn_mask.dtype is torch.bool else attn_mask != -torch.inf)
    if key_padding_mask is not None:
        seen = seen & key_padding_mask[:, None, None, :]
    return seen & (ahead <= 0) if is_causal else seen


def _softmax(scores: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The weights, zeros in a row that sees nothing, and (B, H, Lq), the log-sum-exp."""
    empty = ~seen.any(-1, keepdim=True)
    safe = torch.where(empty, 0.0, scores.masked_fill(~seen, -torch.inf))
    log_sum_exp = torch.where(empty[..., 0], -torch.inf, safe.logsumexp(-1))
    return torch.where(empty, 0.0, safe.softmax(-1)), log_sum_exp


_FUNCTIONS = {Feature.SINUSOIDS, Feature.ALIBI_SLOPES}
_BY_POSITION = {Feature.ROTARY, Feature.ALIBI, Feature.RELATIVE_BIAS, Feature.QUERY_START}
_FEATURES = SDPA_FEATURES | _FUNCTIONS | _BY_POSITION | {Feature.KEY_PADDING, Feature.WEIGHTS, Feature.LOG_SUM_EXP}
_OTHER = Conventions(
    rotary_pairing=RotaryPairing.INTERLEAVED, sinusoid_order=SinusoidOrder.HALVES, alibi_rule=AlibiRule.GEOMETRIC
)

POSITIONS = (
    Implementation(
        "inhouse.positions",
        Claims(Scope.OP, _FEATURES),
        torch_op(attention, extras=("weights", "log_sum_exp")),
        "a function in torch that knows positions, with the functions that make sinusoids and slopes",
        functions={"sinusoids": sinusoids, "alibi_slopes": alibi_slopes},
    ),
    Implementation(
        "inhouse.positions.other",
        Claims(Scope.OP, _FEATURES, _OTHER),
        torch_op(partial(attention, pairing=_OTHER.rotary_pairing), extras=("weights", "log_sum_exp")),
        "the same with the other pairing, the other order of sinusoids and the other rule for slopes",
        functions={
            "sinusoids": partial(sinusoids, order=_OTHER.sinusoid_order),
            "alibi_slopes": partial(alibi_slopes, rule=_OTHER.alibi_rule),
        },
    ),
)
"""With the specification's conventions, and with the other ones."""
