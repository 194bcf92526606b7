# /// script
# requires-python = ">=3.11"
# dependencies = ["mlx[cpu]==0.32.4", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["fused"]
# ///
"""MLX: mx.fast.scaled_dot_product_attention on the CPU, with its causal mask in the bottom-right corner."""

import math

import mlx.core as mx
import numpy as np

from attention_conformance import (
    DTYPES,
    PLAIN_FEATURES,
    Alignment,
    Array,
    Claims,
    Conventions,
    Feature,
    Implementation,
    Scope,
    numpy_op,
)
from attention_conformance.implementations.packages._handed_over import one_mask

mx.set_default_device(mx.cpu)
TYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


def attention(
    *inputs: Array,
    attn_mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """(B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v)."""
    mask = "causal" if is_causal else None if attn_mask is None else _given(attn_mask)
    factor = 1.0 / math.sqrt(inputs[0].shape[-1]) if scale is None else scale
    answer = mx.fast.scaled_dot_product_attention(*map(_given, inputs), scale=factor, mask=mask)
    return np.array(answer.astype(mx.float32)).astype(inputs[0].dtype)


def _given(array: Array) -> object:
    if array.dtype.kind == "b":
        return mx.array(array)
    return mx.array(array.astype(DTYPES["float32"])).astype(TYPES[array.dtype.name])


fused = Implementation(
    "mlx.fast.sdpa",
    Claims(
        Scope.OP,
        PLAIN_FEATURES | {Feature.GROUPED},
        Conventions(causal_alignment=Alignment.BOTTOM_RIGHT).claiming(
            {"empty-row": "uniform", "empty-row-float": "nan"}
        ),
        tuple(TYPES),
        one_mask,
    ),
    numpy_op(attention),
    "MLX's fused attention, on the CPU",
)
