# /// script
# requires-python = ">=3.11"
# dependencies = ["onnx==1.23.2", "onnxruntime==1.32.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["reference", "runtime"]
#
# [tool.attention-conformance.findings]
# reference = """
# With the causal flag and a mask of one row, (B, 1, 1, Lk), the triangle is made for the mask's single query,
# so that every query sees the first key alone. No report was found.
# """
# ///
"""ONNX: the operator Attention of opset 23, in the reference evaluator and in ONNX Runtime on the CPU."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from attention_conformance import (
    PLAIN_FEATURES,
    Array,
    Case,
    Claims,
    Feature,
    Implementation,
    MaskKind,
    MaskShape,
    Scope,
    Unsupported,
    numpy_op,
)
from attention_conformance.implementations.packages._handed_over import positive_scale

OPSET = 23
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
"""Not float64: a scale is an attribute, of which ONNX keeps float32."""
BOOL = TensorProto.BOOL


def attention(
    session: Callable[[bytes], Callable[[dict[str, Array]], Array]],
    *inputs: Array,
    attn_mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
    """(B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v); `session` runs a model."""
    given = {**dict(zip("QKV", inputs, strict=True)), **({} if attn_mask is None else {"attn_mask": attn_mask})}
    mask = None if attn_mask is None else (attn_mask.ndim, attn_mask.dtype.kind == "b")
    return session(_model(inputs[0].dtype.name, mask, is_causal, scale))(given)


@cache
def _model(dtype: str, mask: tuple[int, bool] | None, is_causal: bool, scale: float | None) -> bytes:
    """A graph of one node, as bytes. `mask`: its rank, and whether it is boolean."""
    own = TYPES[dtype]
    inputs = [helper.make_tensor_value_info(name, own, [None] * 4) for name in "QKV"]
    if mask is not None:
        inputs.append(helper.make_tensor_value_info("attn_mask", BOOL if mask[1] else own, [None] * mask[0]))
    options: dict[str, Any] = {"is_causal": int(is_causal), **({} if scale is None else {"scale": scale})}
    node = helper.make_node("Attention", [each.name for each in inputs], ["Y"], **options)
    graph = helper.make_graph([node], "attention", inputs, [helper.make_tensor_value_info("Y", own, [None] * 4)])
    opsets = [helper.make_opsetid("", OPSET)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return model


@cache
def _evaluated(model: bytes) -> Callable[[dict[str, Array]], Array]:
    evaluator = ReferenceEvaluator(model)
    return lambda given: np.asarray(evaluator.run(None, given)[0])


@cache
def _run(model: bytes) -> Callable[[dict[str, Array]], Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda given: np.asarray(session.run(None, given)[0])


def _last_axis_of_keys(case: Case) -> Case | Unsupported:
    """A mask has from two to four axes; a last one that is shorter than the keys is padded, not broadcast."""
    if case.mask is not MaskKind.NONE and case.mask_shape in (MaskShape.KEYS_ONLY, MaskShape.QUERIES):
        return Unsupported("takes masks of 2 to 4 axes, the last of Lk")
    return case


def _both_last_axes(case: Case) -> Case | Unsupported:
    """The last two axes of a mask are spelled out, and a scale is positive: all else is refused."""
    if case.mask is not MaskKind.NONE and not case.mask_shape.endswith("Lq,Lk"):
        return Unsupported("takes masks whose last axes are Lq and Lk")
    return positive_scale(case)


FEATURES = PLAIN_FEATURES | {Feature.GROUPED}
reference = Implementation(
    "onnx.reference",
    Claims(Scope.OP, FEATURES, dtypes=("float32", "float16"), fit=_last_axis_of_keys),
    numpy_op(partial(attention, _evaluated)),
    "ONNX's reference evaluator",
)
runtime = Implementation(
    "onnxruntime.attention",
    Claims(Scope.OP, FEATURES, dtypes=("float32", "float16"), fit=_both_last_axes),
    numpy_op(partial(attention, _run)),
    "ONNX Runtime, operator Attention",
)
