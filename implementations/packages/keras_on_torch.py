# /// script
# requires-python = ">=3.11"
# dependencies = ["keras==3.15.1", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["sdpa"]
# ///
"""Keras: ops.dot_product_attention with the backend torch."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import torch
from keras import ops

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
    torch_op,
)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """(B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v)."""
    given = {} if attn_mask is None else {"mask" if attn_mask.dtype == torch.bool else "bias": attn_mask}
    by_length = (each.transpose(1, 2) for each in (query, key, value))
    answer: torch.Tensor = ops.dot_product_attention(*by_length, is_causal=is_causal, scale=scale, **given)
    return answer.transpose(1, 2)


def _one_bias(case: Case) -> Case | Unsupported:
    """Masks have four axes; a bias goes on to torch alone, which takes it or the causal flag."""
    if case.mask is not MaskKind.NONE and case.mask_shape.count(",") < 3:
        return Unsupported("takes masks of 4 axes")
    both = case.causal and case.mask not in (MaskKind.NONE, MaskKind.BOOL)
    return Unsupported("takes a bias or the causal flag, not both") if both else case


sdpa = Implementation(
    "keras.ops.torch",
    Claims(
        Scope.OP,
        PLAIN_FEATURES | {Feature.GROUPED, Feature.GRADIENTS, Feature.MASK_GRADIENT, Feature.VIEWS},
        Conventions().claiming({"empty-row": "uniform", "empty-row-float": "zeros"}),
        fit=_one_bias,
    ),
    torch_op(attention),
    "keras.ops.dot_product_attention on torch",
)
