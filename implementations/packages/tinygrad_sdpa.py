# /// script
# requires-python = ">=3.11"
# dependencies = ["tinygrad==0.14.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["sdpa"]
#
# [tool.attention-conformance.findings]
# sdpa = """
# A single key that is masked: the row is answered with its value, where rows of two masked keys or more are NaN, as
# the softmax of one minus infinity is 1. No report was found.
# """
# ///
"""Tinygrad: Tensor.scaled_dot_product_attention on the CPU, for which it compiles by clang."""

import os
import shutil
from typing import Any

os.environ["DEV"] = "CPU"
from tinygrad import Tensor

from attention_conformance import PLAIN_FEATURES, Array, Claims, Conventions, Feature, Implementation, Scope, numpy_op
from attention_conformance.implementations.packages._handed_over import one_mask

if not shutil.which(os.environ.get("CC", "clang")):
    raise ImportError("tinygrad compiles by clang, which is not installed")


def attention(query: Array, *others: Array, attn_mask: Array | None = None, **options: Any) -> Array:
    """(B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v)."""
    mask = None if attn_mask is None else Tensor(attn_mask)
    output: Array = Tensor(query).scaled_dot_product_attention(*map(Tensor, others), mask, **options).numpy()
    return output


sdpa = Implementation(
    "tinygrad.sdpa",
    Claims(
        Scope.OP,
        PLAIN_FEATURES - {Feature.SCALE} | {Feature.GROUPED},
        Conventions().claiming({"empty-row": "nan"}),
        dtypes=("float32",),
        fit=one_mask,
    ),
    numpy_op(attention),
    "tinygrad.Tensor.scaled_dot_product_attention",
)
