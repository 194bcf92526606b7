"""Splits of the keys, one after the other: maximum, sum and mixed values are carried on, and divided at the end."""

from typing import Any

import torch
from torch import Tensor

from attention_conformance.implementations.adapters.modes import op_modes
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.inhouse.call_options import supported
from attention_conformance.implementations.builtin.inhouse.online import wide
from attention_conformance.implementations.builtin.inhouse.tile_masks import INFINITY, Masks
from attention_conformance.implementations.builtin.sdpa import SDPA_FEATURES
from attention_conformance.spec.features import Feature, Scope

SUPPORTED = {
    "attn_mask",
    "dropout_p",
    "is_causal",
    "key_padding_mask",
    "query_start",
    "scale",
    "sinks",
    "split_lengths",
}
"""The options of `attention`."""


def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """softmax(scale * Q K^T + mask) V for every sample and head; half types are worked on in float32.

    Args:
        query: (B, H, Lq, d_k).
        key: (B, H, Lk, d_k).
        value: (B, H, Lk, d_v).
        options: those of `SUPPORTED`; see `Options`.

    Returns:
        The output (B, H, Lq, d_v) and the log-sum-exp (B, H, Lq), in which the sink and dropped keys count. A query
        that may attend to no key gets zeros.
    """
    call, dtype = supported(options, SUPPORTED), query.dtype
    masks = Masks.of(call, query, key)
    q, k, v = (x.to(wide(dtype)) for x in (query, key, value))
    scores = q @ k.mT * (query.shape[-1] ** -0.5 if call.scale is None else call.scale)
    visible, added = masks.visible(masks.whole), masks.added(masks.whole, scores.dtype)
    scores = scores if added is None else scores + added
    scores = scores if visible is None else scores.masked_fill(~visible, -INFINITY)
    lengths = [key.shape[-2]] if call.split_lengths is None else call.split_lengths.tolist()
    top, whole, mixed = _start(call.sinks, scores, v)
    for part, rows in zip(scores.split(lengths, -1), v.split(lengths, -2), strict=True):
        # The result does not depend on what is taken off: no gradient goes through the maximum.
        higher = torch.cat([top, part.detach()], -1).amax(-1, keepdim=True)
        level = _or_zero(higher)
        weights, shrunk = (part - level).exp(), (top - level).exp()
        whole = whole * shrunk + weights.sum(-1, keepdim=True)
        weights = torch.dropout(weights, call.dropout_p, train=True) if call.dropout_p else weights
        mixed, top = mixed * shrunk + weights @ rows, higher
    empty = whole == 0.0
    whole = whole.masked_fill(empty, 1.0)
    log_sum_exp = torch.where(empty, -INFINITY, whole.log() + _or_zero(top))[..., 0]
    return (mixed / whole).to(dtype), log_sum_exp.to(dtype)


def _start(sinks: Tensor | None, scores: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Before any key: maximum and sum (B, H, Lq, 1) of the sinks alone, and nothing mixed, (B, H, Lq, d_v)."""
    rows = scores.shape[:-1]
    mixed = value.new_zeros(*rows, value.shape[-1])
    if sinks is None:
        return scores.new_full((*rows, 1), -INFINITY), scores.new_zeros(*rows, 1), mixed
    logits = sinks.to(scores.dtype)[:, None, None].expand(*rows, 1)
    top = logits.detach()
    return top, (logits - _or_zero(top)).exp(), mixed


def _or_zero(top: Tensor) -> Tensor:
    return top.masked_fill(top == -INFINITY, 0.0)


_RETURNED = {Feature.LOG_SUM_EXP, Feature.LOG_SUM_EXP_GRADIENT, Feature.DROPOUT}
_FEATURES = {Feature.KEY_PADDING, Feature.QUERY_START, Feature.SINKS, Feature.KEY_SPLITS} | _RETURNED
SPLITS = Implementation(
    "inhouse.splits",
    Claims(Scope.OP, SDPA_FEATURES | _FEATURES),
    torch_op(attention, extras=("log_sum_exp",)),
    "the keys in splits, with sums that are carried on, in torch",
    modes=op_modes(attention, Feature.LOG_SUM_EXP_GRADIENT, extras=("log_sum_exp",)),
)
