"""Callables for the auditor: attention in other layouts, polarities and orders of arguments; their conventions."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_conformance.implementations.builtin.compositions import eager, in_numpy
from attention_conformance.implementations.builtin.inhouse.fused import FusedAttention
from attention_conformance.implementations.builtin.inhouse.numpy_attention import attention
from attention_conformance.implementations.builtin.inhouse.tiled import tiled_attention
from attention_conformance.implementations.builtin.sources import a, b, c, d, e
from attention_conformance.implementations.discovery.auditor.findings import ABSENT, MASKED_OUT, MAY_ATTEND, OFFERED
from attention_conformance.implementations.discovery.auditor.probe_scores import RIGHT
from attention_conformance.spec.problem import Array

Known: TypeAlias = Mapping[str, str]
_INFINITE = float("-inf")


def blhd_masked_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """(B, L, H, d); True in the mask hides."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return eager(q, k, v, None if mask is None else ~mask, causal).transpose(1, 2)


def lbhd(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(L, B, H, d)."""
    query, key, value = (x.permute(1, 2, 0, 3) for x in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value).permute(2, 0, 1, 3)


def blhd_in_bhld_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """(B, L, H, d) -> (B, H, L, d)."""
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(query, key, value)


def flat(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """(B * H, L, d), and a mask of (B * H, Lq, Lk)."""
    if query.ndim != 3 or (attn_mask is not None and len(attn_mask) != len(query)):
        raise ValueError("three axes")
    return eager(query, key, value, attn_mask)


def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(L, d)."""
    if q.ndim != 2:
        raise ValueError("two axes")
    return eager(q, k, v)


def packed(queries: Tensor, keys: Tensor, values: Tensor, num_heads: int) -> Tensor:
    """(B, L, H * d)."""
    query, key, value = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (queries, keys, values))
    return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


def packed_length_first(q: Tensor, k: Tensor, v: Tensor, n_head: int) -> Tensor:
    """(L, B, H * d)."""
    return packed(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1), n_head).transpose(0, 1)


def value_key_query(value: Tensor, key: Tensor, query: Tensor, is_causal: bool = False) -> Tensor:
    """Its arguments come in another order, as their names show."""
    return eager(query, key, value, is_causal=is_causal)


def nameless(a: Tensor, b: Tensor, c: Tensor, m: Tensor | None = None, t: bool = False, s: float | None = None) -> Any:
    """Key, value and query, and options with unknown names; it also returns the weights, queries last."""
    scores = c @ a.mT * (c.shape[-1] ** -0.5 if s is None else s)
    if m is not None:
        scores = scores.masked_fill(m, _INFINITE)
    if t:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + scores.shape[-1] - scores.shape[-2])
        scores = scores.masked_fill(later, _INFINITE)
    weights = scores.softmax(-1)
    return weights @ b, weights.mT


def by_keyword(*, keys: Tensor, queries: Tensor, values: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
    """Keyword arguments, and a padding mask in which True hides."""
    return eager(queries, keys, values, None if key_padding_mask is None else ~key_padding_mask[:, None, None])


def padded(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, None]:
    """A mask (B, Lk); it returns None after the output."""
    return eager(q, k, v, None if mask is None else mask[:, None, None]), None


def shared(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A mask of (Lq, Lk) and no other."""
    if attn_mask is not None and attn_mask.ndim != 2:
        raise ValueError("two axes")
    return eager(query, key, value, attn_mask)


def arrays_blhd(q: Array, k: Array, v: Array, attn_bias: Array | None = None, softcap: float | None = None) -> Array:
    """NumPy, (B, L, H, d), a bias; scores and bias are capped together."""
    query, key, value = (np.swapaxes(x, 1, 2) for x in (q, k, v))
    scores = query @ np.swapaxes(key, -1, -2) * np.float32(query.shape[-1] ** -0.5)
    scores = scores if attn_bias is None else scores + attn_bias
    scores = scores if softcap is None else softcap * np.tanh(scores / softcap)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(np.swapaxes(weights / weights.sum(-1, keepdims=True) @ value, 1, 2), q.dtype)


def tiled_groups(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool = False) -> Tensor:
    """Query head h uses key head h % Hk."""
    groups = query.shape[1] // key.shape[1]
    return eager(query, key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1))


def wrong_scale(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
) -> Tensor:
    """Divides by d_k, and ignores the causal flag."""
    return eager(query, key, value, attn_mask, scale=1.0 / query.shape[-1])


def wrong_axis(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The softmax goes over the queries."""
    weights: Tensor = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-2)
    return weights @ value


class SelfAttention(nn.Module):
    """(B, L, width), one projection for all three, a mask (B, H, Lq, Lk) in which True may attend."""

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.heads, self.dropout = n_heads, dropout
        self.qkv, self.proj = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, L, width) -> (B, L, width)."""
        query, key, value = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mixed: Tensor = self.proj(eager(query, key, value, mask).transpose(1, 2).flatten(2))
        return mixed


_TORCH = {"framework": "torch", "plain answer": RIGHT, "default scale": "1/sqrt(d_k)"}
_NUMPY = {**_TORCH, "framework": "numpy"}
_BHLD = {"arguments": "query, key, value", "layout": "BHLD", "level": "op", "heads": "many"}
_LETTERS = {"arguments": "q is query, k is key, v is value"}
_MODULE = {**_TORCH, "level": "module", "layout": "BLE"}
_NAN = {"empty-row-bool": "nan", "causal-alignment": "top-left"}
_ZEROS = {"mask polarity": MAY_ATTEND, "float-mask": "added", "empty-row-bool": "zeros", "empty-row-float": "zeros"}
_FLAGS = {"scale": "used", "causal-alignment": "top-left", "causal-with-mask": "either", "group-order": "consecutive"}
_OFFERS = {"dropout": OFFERED, "gradients": OFFERED, "key-padding": ABSENT, "window": ABSENT}
_WEIGHTS = {"weights": OFFERED, "returned-weights": "after-dropout", "evaluation": OFFERED, "empty-row-bool": "nan"}
_KEY_VALUE_QUERY = {"arguments": "a is key, b is value, c is query", "scale": "used", "weights": OFFERED}
_EXTRAS = {"weights": OFFERED, "sinks": OFFERED}
_BOTTOM_RIGHT = {"causal-alignment": "bottom-right", "empty-row-causal": "nan"}

TARGETS: Mapping[str, tuple[Any, Known]] = {
    "torch.nn.functional.scaled_dot_product_attention": (
        F.scaled_dot_product_attention,
        {**_TORCH, **_BHLD, **_ZEROS, **_FLAGS, **_OFFERS},
    ),
    "torch.nn.MultiheadAttention": (
        nn.MultiheadAttention,
        {**_MODULE, **_WEIGHTS, "mask polarity": MASKED_OUT, "key-padding": OFFERED, "scale": ABSENT},
    ),
    "compositions.eager": (eager, {**_TORCH, **_BHLD, **_NAN, "mask polarity": MAY_ATTEND, "scale": "used"}),
    "compositions.in_numpy": (in_numpy, {**_NUMPY, **_BHLD, **_NAN, "gradients": ABSENT, "group-order": "consecutive"}),
    "inhouse.tiled_attention": (
        tiled_attention,
        {**_TORCH, **_BHLD, "log-sum-exp-base": "e", "window-count": "excluding", "softcap order": "cap before mask"},
    ),
    "inhouse.attention": (attention, {**_NUMPY, **_BHLD, "softmax-precision": "float32", **_EXTRAS}),
    "inhouse.FusedAttention": (
        FusedAttention,
        {**_MODULE, "mask polarity": MASKED_OUT, "returned-weights": "before-dropout", "group-order": "consecutive"},
    ),
    "source A": (a.MultiHeadSelfAttention, {**_MODULE, "heads": "many", "cross": ABSENT}),
    "source B": (b.Self_Attention, {**_MODULE, "heads": "one", "parameters": "bias"}),
    "source C": (c.MultiHeadAttention, {**_MODULE, "heads": "many", "parameters": "bias"}),
    "source D": (d.MultiHeadAttention, {**_MODULE, "heads": "many", "key-value": OFFERED}),
    "source E": (e.MultiHeadAttention, {**_MODULE, "empty-row-bool": "zeros"}),
    "blhd_masked_out": (
        blhd_masked_out,
        {**_TORCH, **_LETTERS, **_NAN, "layout": "BLHD", "mask polarity": MASKED_OUT, "float-mask": ABSENT},
    ),
    "lbhd": (lbhd, {**_TORCH, "layout": "LBHD"}),
    "blhd_in_bhld_out": (blhd_in_bhld_out, {**_TORCH, "layout": "BLHD -> BHLD"}),
    "flat": (flat, {**_TORCH, "layout": "NLD", "mask polarity": MAY_ATTEND, "empty-row-bool": "nan"}),
    "one_head": (one_head, {**_TORCH, **_LETTERS, "layout": "LD"}),
    "packed": (packed, {**_TORCH, "layout": "BLE", "heads": "many"}),
    "packed_length_first": (packed_length_first, {**_TORCH, **_LETTERS, "layout": "LBE", "heads": "many"}),
    "value_key_query": (value_key_query, {**_TORCH, "arguments": "value, key, query", "causal-alignment": "top-left"}),
    "nameless": (nameless, {**_TORCH, **_KEY_VALUE_QUERY, **_BOTTOM_RIGHT, "mask polarity": MASKED_OUT}),
    "by_keyword": (by_keyword, {**_TORCH, "mask polarity": MASKED_OUT, "empty-row-padding": "nan"}),
    "padded": (padded, {**_TORCH, "mask polarity": MAY_ATTEND, "key-padding": MAY_ATTEND, "bool-mask": ABSENT}),
    "shared": (shared, {**_TORCH, "mask polarity": MAY_ATTEND, "float-mask": "added"}),
    "arrays_blhd": (
        arrays_blhd,
        {**_NUMPY, "layout": "BLHD", "bool-mask": ABSENT, "float-mask": "added", "softcap order": "mask before cap"},
    ),
    "tiled_groups": (tiled_groups, {**_TORCH, **_BHLD, "group-order": "tiled"}),
    "wrong_scale": (wrong_scale, {**_BHLD, "default scale": "1/d_k", "causal": "ignored"}),
    "SelfAttention": (SelfAttention, {**_MODULE, "mask polarity": MAY_ATTEND, "heads": "many"}),
}
"""Callables as they are, and what is known of them."""
