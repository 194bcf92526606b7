"""Attention in NumPy: one function, written for reading, in the dtype of its inputs."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

SINGLE = np.dtype(np.float32)


def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    key_padding_mask: Array | None = None,
) -> tuple[Array, Array, Array]:
    """softmax(scale * Q K^T + mask) V for every sample and head; half types are worked on in float32.

    Args:
        query: (B, H, Lq, d_k).
        key: (B, H, Lk, d_k).
        value: (B, H, Lk, d_v).
        attn_mask: broadcasts to (B, H, Lq, Lk); True = may attend, or numbers that are added to the scores.
        is_causal: no query sees a later key; query and key 0 stand side by side.
        scale: multiplies the scores; None is 1 / sqrt(d_k).
        key_padding_mask: (B, Lk), True = may attend.

    Returns:
        The output (B, H, Lq, d_v), the weights (B, H, Lq, Lk) and the log-sum-exp of the scores (B, H, Lq). A
        query that may attend to no key gets zeros, and minus infinity as its log-sum-exp.

    Raises:
        ValueError: shapes that do not fit.
    """
    if query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        shapes = f"{query.shape}, {key.shape} and {value.shape}"
        raise ValueError(f"query and key need one width, key and value one length: got {shapes}")
    dtype = query.dtype
    seen = _visible((*query.shape[:-1], key.shape[-2]), attn_mask, is_causal, key_padding_mask)
    q, k, v = (x.astype(dtype if dtype.itemsize >= 4 else SINGLE, copy=False) for x in (query, key, value))
    k, v = _contained(k, seen), _contained(v, seen)
    scores = (q @ np.swapaxes(k, -1, -2)) * q.dtype.type(q.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None and attn_mask.dtype.kind != "b":
        scores = scores + attn_mask.astype(scores.dtype)
    weights, log_sum_exp = _softmax(np.where(seen, scores, -np.inf))
    output = weights @ v
    return output.astype(dtype), weights.astype(dtype), log_sum_exp.astype(dtype)


def _visible(
    shape: tuple[int, ...], attn_mask: Array | None, is_causal: bool, key_padding_mask: Array | None
) -> NDArray[np.bool_]:
    """(B, H, Lq, Lk): the keys that all masks leave."""
    seen = np.ones(shape, dtype=bool)
    if attn_mask is not None:
        kept = attn_mask if attn_mask.dtype.kind == "b" else ~np.isneginf(attn_mask.astype(np.float64))
        seen &= kept.astype(bool)
    if key_padding_mask is not None:
        seen &= key_padding_mask.astype(bool)[:, None, None, :]
    if is_causal:
        seen &= np.tri(*shape[-2:], dtype=np.bool_)
    return seen


def _contained(rows: Array, seen: NDArray[np.bool_]) -> Array:
    """Keys or values (B, H, Lk, d) with zeros where no query may look: a weight of 0 times NaN is NaN."""
    looked_at = np.any(seen, axis=-2, keepdims=True).swapaxes(-1, -2)
    return np.where(looked_at, rows, rows.dtype.type(0))


def _softmax(scores: Array) -> tuple[Array, Array]:
    """(B, H, Lq, Lk) -> the weights, and (B, H, Lq), the log-sum-exp."""
    top = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), scores.dtype.type(0), top)
    exponentials = np.exp(scores - top)
    total = exponentials.sum(axis=-1, keepdims=True)
    weights = exponentials / np.where(total == 0, scores.dtype.type(1), total)
    with np.errstate(divide="ignore"):
        return weights, (np.log(total) + top)[..., 0]
