# /// script
# requires-python = ">=3.11"
# dependencies = ["keras==3.15.1", "jax==0.10.2", "scipy==1.17.1", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["sdpa"]
#
# [tool.attention-conformance.findings]
# sdpa = """
# Fewer key heads than query heads are documented, and refused by the backend numpy unless there is one. The pull
# request that mended this for torch and TensorFlow, https://github.com/keras-team/keras/pull/23081, left it out.
# """
# ///
"""Keras: ops.dot_product_attention with the backend numpy, whose softmax is in float32."""

import os

os.environ["KERAS_BACKEND"] = "numpy"
import numpy as np
from keras import ops

from attention_conformance import (
    PLAIN_FEATURES,
    Array,
    Case,
    Claims,
    Conventions,
    Feature,
    Implementation,
    MaskKind,
    Scope,
    Unsupported,
    numpy_op,
)


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
    given = {} if attn_mask is None else {"mask" if attn_mask.dtype.kind == "b" else "bias": attn_mask}
    by_length = (each.swapaxes(1, 2) for each in (query, key, value))
    answer = ops.dot_product_attention(*by_length, is_causal=is_causal, scale=scale, **given)
    return np.asarray(answer).swapaxes(1, 2)


def _axes(case: Case) -> Case | Unsupported:
    """Masks have four axes."""
    if case.mask is not MaskKind.NONE and case.mask_shape.count(",") < 3:
        return Unsupported("takes masks of 4 axes")
    return case


sdpa = Implementation(
    "keras.ops.numpy",
    Claims(
        Scope.OP,
        PLAIN_FEATURES | {Feature.GROUPED},
        Conventions().claiming({"empty-row": "uniform", "empty-row-float": "nan", "softmax-precision": "float32"}),
        fit=_axes,
    ),
    numpy_op(attention),
    "keras.ops.dot_product_attention on NumPy",
)
