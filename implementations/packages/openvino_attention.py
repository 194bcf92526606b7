# /// script
# requires-python = ">=3.11"
# dependencies = ["openvino==2026.4.1", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["op"]
#
# [tool.attention-conformance.findings]
# op = """
# After a call with a boolean mask of a wrong length, which is refused, right calls of earlier shapes on the
# same compiled model are refused, too. No report was found.
# """
# ///
"""OpenVINO: the operation ScaledDotProductAttention of opset 13, on the CPU in float32."""

from collections.abc import Callable
from functools import cache

import numpy as np
import openvino
from openvino import opset13

from attention_conformance import (
    PLAIN_FEATURES,
    Array,
    Case,
    Claims,
    Conventions,
    Implementation,
    MaskKind,
    MaskShape,
    Scope,
    Unsupported,
    numpy_op,
)
from attention_conformance.implementations.packages._handed_over import one_mask

SETTINGS = {"INFERENCE_PRECISION_HINT": "f32"}
"""Without it CPUs that have bfloat16 compute in it."""


def attention(
    *inputs: Array, attn_mask: Array | None = None, is_causal: bool = False, scale: float | None = None
) -> Array:
    """(B, H, Lq, d_k), (B, H, Lk, d_k), (B, H, Lk, d_v) -> (B, H, Lq, d_v)."""
    mask = None if attn_mask is None else (attn_mask.ndim, attn_mask.dtype.kind == "b")
    numbers = None if scale is None else np.array(scale, inputs[0].dtype)
    given = [each for each in (*inputs, attn_mask, numbers) if each is not None]
    return _model(mask, is_causal, scale is not None)(given)


@cache
def _model(mask: tuple[int, bool] | None, is_causal: bool, scaled: bool) -> Callable[[list[Array]], Array]:
    """A compiled graph of one node. `mask`: its rank, and whether it is boolean."""
    inputs = [opset13.parameter([-1] * 4, np.float32) for _ in range(3)]
    masks = [] if mask is None else [opset13.parameter([-1] * mask[0], np.bool_ if mask[1] else np.float32)]
    scales = [opset13.parameter([], np.float32)] if scaled else []
    added = masks or ([opset13.constant(np.float32(0.0))] if scaled else [])
    node = opset13.scaled_dot_product_attention(*inputs, *added, *scales, causal=is_causal)
    model = openvino.Model([node], [*inputs, *masks, *scales])
    compiled = openvino.Core().compile_model(model, "CPU", SETTINGS)
    return lambda given: np.array(compiled.infer_new_request(given)[0])  # one request of its own: threads share none


def _two_axes(case: Case) -> Case | Unsupported:
    """With the causal flag a mask is not looked at, as the documentation says; masks have two axes or more."""
    if case.mask is not MaskKind.NONE and case.mask_shape is MaskShape.KEYS_ONLY:
        return Unsupported("takes masks of two axes or more")
    return one_mask(case)


op = Implementation(
    "openvino.sdpa",
    Claims(Scope.OP, PLAIN_FEATURES, Conventions().claiming({"empty-row": "nan"}), ("float32",), _two_axes),
    numpy_op(attention),
    "OpenVINO's ScaledDotProductAttention, on the CPU",
)
