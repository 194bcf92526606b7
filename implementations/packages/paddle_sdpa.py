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

from typing import Any

import numpy as np
import paddle
from paddle.nn.functional import scaled_dot_product_attention

from attention_conformance import (
    PLAIN_FEATURES,
    Array,
    Claims,
    Conventions,
    ExpectedFailure,
    Feature,
    Implementation,
    Scope,
    numpy_op,
)
from attention_conformance.implementations.packages._handed_over import one_mask

REASON = "its softmax keeps every weight above exp(-64), masked ones too, so that no logarithm of 0 is taken"
REPORT = "https://github.com/PaddlePaddle/Paddle/issues/4366"
DTYPES = ("float64", "float32")


def attention(*inputs: Array, attn_mask: Array | None = None, **options: Any) -> Array:
    """(B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v)."""
    by_length = (paddle.to_tensor(np.ascontiguousarray(each.swapaxes(1, 2))) for each in inputs)
    mask = None if attn_mask is None else paddle.to_tensor(attn_mask)
    answer = scaled_dot_product_attention(*by_length, attn_mask=mask, training=False, **options)
    return np.asarray(answer.numpy().swapaxes(1, 2))


sdpa = Implementation(
    "paddle.sdpa",
    Claims(
        Scope.OP, PLAIN_FEATURES | {Feature.GROUPED}, Conventions().claiming({"empty-row": "nan"}), DTYPES, one_mask
    ),
    numpy_op(attention),
    "Paddle's scaled_dot_product_attention, on the CPU",
    tuple(ExpectedFailure(clause, REASON, REPORT) for clause in ("masks.no-influence", "relations.padding-extension")),
)
