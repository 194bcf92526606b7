# /// script
# requires-python = ">=3.11"
# dependencies = ["keras==3.15.1", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["numpy_backend", "torch_backend"]
# ///
"""Keras: ops.dot_product_attention with two of its backends, each loaded where it is first called."""

import os
from functools import partial
from typing import Any

import numpy as np
import torch

from attention_conformance import (
    PLAIN_FEATURES,
    Case,
    Claims,
    Conventions,
    Feature,
    Implementation,
    MaskKind,
    Scope,
    Unsupported,
    numpy_op,
    torch_op,
)


def attention(
    backend: str,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """(B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v)."""
    os.environ["KERAS_BACKEND"] = backend
    from keras import ops

    given = {} if attn_mask is None else {"mask" if attn_mask.dtype in (np.bool_, torch.bool) else "bias": attn_mask}
    by_length = (each.swapaxes(1, 2) for each in (query, key, value))
    return ops.dot_product_attention(*by_length, is_causal=is_causal, scale=scale, **given).swapaxes(1, 2)


def _axes(case: Case) -> Case | Unsupported:
    """Masks have four axes."""
    if case.mask is not MaskKind.NONE and case.mask_shape.count(",") < 3:
        return Unsupported("takes masks of 4 axes")
    return case


def _one_bias(case: Case) -> Case | Unsupported:
    """A bias goes on to torch alone, which takes it or the causal flag."""
    if case.causal and case.mask is MaskKind.FLOAT:
        return Unsupported("takes a bias or the causal flag, not both")
    return _axes(case)


numpy_backend = Implementation(
    "keras.ops.numpy",
    Claims(
        Scope.OP,
        PLAIN_FEATURES | {Feature.GROUPED},
        Conventions().claiming({"empty-row": "uniform", "empty-row-float": "nan", "softmax-precision": "float32"}),
        fit=_axes,
    ),
    numpy_op(partial(attention, "numpy")),
    "keras.ops.dot_product_attention on NumPy",
)
torch_backend = Implementation(
    "keras.ops.torch",
    Claims(
        Scope.OP,
        PLAIN_FEATURES | {Feature.GROUPED, Feature.GRADIENTS, Feature.MASK_GRADIENT, Feature.VIEWS},
        Conventions().claiming({"empty-row": "uniform", "empty-row-float": "zeros"}),
        fit=_one_bias,
    ),
    torch_op(partial(attention, "torch")),
    "keras.ops.dot_product_attention on torch",
)
