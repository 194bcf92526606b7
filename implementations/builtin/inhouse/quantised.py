"""Attention over codes of 8 bits: dequantised in torch, and with the scales behind the products in NumPy."""

import numpy as np

from attention_conformance.implementations.adapters.numpy_op import numpy_op
from attention_conformance.implementations.adapters.quantising import QuantisedCall
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.quantised_steps import QuantisedSteps
from attention_conformance.spec.conventions import Alignment, Conventions
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array

FEATURES = frozenset(
    {
        Feature.CORE,
        Feature.HEADS,
        Feature.VALUE_WIDTH,
        Feature.CROSS,
        Feature.KEY_VALUE,
        Feature.GROUPED,
        Feature.CAUSAL,
        Feature.SCALE,
        Feature.QUANTISED,
    }
)
"""What a function of codes offers: nothing of it has gradients."""
ALIGNED = Conventions(causal_alignment=Alignment.BOTTOM_RIGHT)


def quantised_attention(
    query: Array,
    key: Array,
    value: Array,
    key_scale: Array,
    value_scale: Array,
    is_causal: bool = False,
    scale: float | None = None,
) -> Array:
    """The same as `QuantisedSteps`; scores and weights are multiplied by the scales, not keys and values.

    Args:
        query: (B, H, Lq, d_k).
        key: (B, Hk, Lk, d_k) codes of 8 bits.
        value: (B, Hk, Lk, d_v) codes.
        key_scale: (1,), (Hk,), (B, Hk), (B, Hk, Lk) or (B, Hk, blocks).
        value_scale: the same.
        is_causal: no query sees a later key; the last query stands at the last key.
        scale: multiplies the scores; None is 1 / sqrt(d_k).
    """
    batch, heads, queries, width = query.shape
    keyed, length = key.shape[1:3]
    number = np.dtype(np.float64 if query.dtype == np.float64 else np.float32).type
    # (B, Hk, heads of its group, Lq, d): one product for each key head.
    rows = query.astype(number).reshape(batch, keyed, heads // max(1, keyed), queries, width)
    of_key, of_value = (_along_keys(each, length).astype(number) for each in (key_scale, value_scale))
    scores = rows @ key.astype(number)[:, :, None].swapaxes(-1, -2) * of_key
    scores *= number(width**-0.5 if scale is None else scale)
    if is_causal:
        later = np.arange(length) > np.arange(queries)[:, None] + length - queries
        scores = np.where(later, -number(np.inf), scores)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(top), number(0), top))
    whole = weights.sum(-1, keepdims=True)
    mixed = (weights * of_value) @ value.astype(number)[:, :, None] / np.where(whole == 0, number(1), whole)
    return np.asarray(mixed.reshape(batch, heads, queries, -1).astype(query.dtype))


def _along_keys(scale: Array, length: int) -> Array:
    """(1, 1, 1, 1), (Hk, 1, 1, 1), (B, Hk, 1, 1, 1) or (B, Hk, 1, 1, Lk)."""
    if scale.ndim < 3:
        return scale[..., None, None, None]
    size = -(-length // max(1, scale.shape[-1]))
    return scale[..., np.arange(length) // max(1, size)][:, :, None, None]


IN_TORCH = Implementation(
    "inhouse.quantised",
    Claims(Scope.OP, FEATURES, ALIGNED),
    torch_op(QuantisedCall(QuantisedSteps())),
    "keys and values as int8 or float8 with scales, dequantised, in torch",
)
IN_NUMPY = Implementation(
    "inhouse.quantised.numpy",
    Claims(Scope.OP, FEATURES, ALIGNED),
    numpy_op(QuantisedCall(quantised_attention)),
    "the same with the scales behind the products, in NumPy",
)
QUANTISED = (IN_TORCH, IN_NUMPY)
"""In-house attention over codes, plain enough for an example."""
