# /// script
# requires-python = ">=3.11"
# dependencies = ["paddlepaddle==3.3.1", "setuptools", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["sdpa"]
#
# [tool.attention-conformance.findings]
# sdpa = """
# The scale 0 is taken as an absent one. No report was found.
# """
# ///
"""Paddle: nn.functional.scaled_dot_product_attention, composed on the CPU."""

import numpy as np
import paddle
from paddle.nn.functional import scaled_dot_product_attention

from attention_conformance import (
    PLAIN_FEATURES,
    Array,
    Case,
    Claims,
    Conventions,
    ExpectedFailure,
    Feature,
    Implementation,
    MaskKind,
    Scope,
    Unsupported,
    numpy_op,
)

REASON = "its softmax keeps every weight above exp(-64), masked ones too, so that no logarithm of 0 is taken"
REPORT = "https://github.com/PaddlePaddle/Paddle/issues/4366"
DTYPES = ("float64", "float32")


def attention(
    query: Array,
    key: Array,
    value: Array,
    attn_mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """(B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v)."""
    by_length = (paddle.to_tensor(np.ascontiguousarray(each.swapaxes(1, 2))) for each in (query, key, value))
    mask = None if attn_mask is None else paddle.to_tensor(attn_mask)
    answer = scaled_dot_product_attention(
        *by_length, attn_mask=mask, is_causal=is_causal, training=False, scale=scale, enable_gqa=enable_gqa
    )
    return np.asarray(answer.numpy().swapaxes(1, 2))


def _one_mask(case: Case) -> Case | Unsupported:
    both = case.causal and case.mask is not MaskKind.NONE
    return Unsupported("takes a mask or the causal flag, not both") if both else case


sdpa = Implementation(
    "paddle.sdpa",
    Claims(
        Scope.OP, PLAIN_FEATURES | {Feature.GROUPED}, Conventions().claiming({"empty-row": "nan"}), DTYPES, _one_mask
    ),
    numpy_op(attention),
    "Paddle's scaled_dot_product_attention, on the CPU",
    tuple(ExpectedFailure(clause, REASON, REPORT) for clause in ("masks.no-influence", "relations.padding-extension")),
)
