# /// script
# requires-python = ">=3.11"
# dependencies = ["onnxruntime==1.32.0", "onnx==1.23.2", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["multi_head", "grouped_query"]
#
# [tool.attention-conformance.findings]
# multi_head = """
# With unidirectional=1 and more keys than queries, the last query sees all keys; the others see those up to
# their own place. No report was found.
# """
# ///
"""ONNX Runtime: MultiHeadAttention and GroupQueryAttention of its own domain com.microsoft, on the CPU."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

from attention_conformance import (
    Array,
    Case,
    Claims,
    Conventions,
    Feature,
    Implementation,
    MaskKind,
    Premises,
    Scope,
    Unsupported,
    WindowCount,
    numpy_op,
)
from attention_conformance.implementations.packages._handed_over import positive_scale

INPUTS = ("query", "key", "value")
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT32
WIDTHS = 8
"""Widths of heads are multiples of this."""


def multi_head_attention(
    *inputs: Array, attn_mask: Array | None = None, is_causal: bool = False, scale: float | None = None
) -> Array:
    """(B, H, Lq, d_k), (B, H, Lk, d_k), (B, H, Lk, d_v) -> (B, H, Lq, d_v)."""
    heads, queries, keys = inputs[0].shape[1], inputs[0].shape[2], inputs[1].shape[2]
    options = {"num_heads": heads, "unidirectional": int(is_causal), **({} if scale is None else {"scale": scale})}
    given = dict(zip(INPUTS, map(_packed, inputs), strict=True))
    names = [*given, "", ""]
    if attn_mask is not None:
        given["attention_bias"] = np.broadcast_to(attn_mask, (len(inputs[0]), heads, queries, keys)).copy()
    run = _session("MultiHeadAttention", (*names, *list(given)[3:]), tuple(sorted(options.items())), 1)
    return _in_heads(run(given), heads)


def grouped_query_attention(
    *inputs: Array,
    window_size: tuple[int, int] = (-1, -1),
    sinks: Array | None = None,
    enable_gqa: bool = False,
    **options: Any,
) -> Array:
    """(B, H, L, d), (B, Hk, L, d), (B, Hk, L, d) -> (B, H, L, d), causal; a window counts the query's own key."""
    batch, heads, length, _ = inputs[0].shape
    options |= {"num_heads": heads, "kv_num_heads": inputs[1].shape[1], "local_window_size": window_size[0]}
    given = dict(zip(INPUTS, map(_packed, inputs), strict=True))
    given["seqlens_k"] = np.full(batch, length - 1, np.int32)
    given["total_sequence_length"] = np.array(length, np.int32)
    names = [*INPUTS, "", "", *list(given)[3:]]
    if sinks is not None:
        names += ["", "", "", "", "head_sink"]
        given["head_sink"] = sinks
    return _in_heads(_session("GroupQueryAttention", tuple(names), tuple(sorted(options.items())), 3)(given), heads)


def _packed(array: Array) -> Array:
    """(B, H, L, d) -> (B, L, H * d)."""
    return array.swapaxes(1, 2).reshape(array.shape[0], array.shape[2], -1)


def _in_heads(array: Array, heads: int) -> Array:
    return array.reshape(*array.shape[:2], heads, -1).swapaxes(1, 2)


@cache
def _session(
    operator: str, names: tuple[str, ...], options: tuple[tuple[str, Any], ...], outputs: int
) -> Callable[[dict[str, Array]], Array]:
    """Runs a graph of one node; an input without a name is left out."""
    counts = {"seqlens_k", "total_sequence_length"}
    inputs = [helper.make_tensor_value_info(each, INT if each in counts else FLOAT, None) for each in names if each]
    results = [helper.make_tensor_value_info(f"result_{i}", FLOAT, None) for i in range(outputs)]
    node = helper.make_node(operator, names, [each.name for each in results], domain="com.microsoft", **dict(options))
    graph = helper.make_graph([node], "attention", inputs, results)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = onnxruntime.InferenceSession(model, quiet, providers=["CPUExecutionProvider"])
    return lambda given: np.asarray(session.run(None, given)[0])


def _added(case: Case) -> Case | Unsupported:
    """Masks are added."""
    return Unsupported("takes float masks") if case.mask is MaskKind.BOOL else positive_scale(case)


def _prompt(case: Case) -> Case | Unsupported:
    """Without earlier keys there are as many as queries; heads have multiples of 8 components, and a window a key."""
    if case.extension.window_left == 0:
        return Unsupported("takes windows of one key or more")
    width = -(-case.sizes.d_k // WIDTHS) * WIDTHS
    return positive_scale(case.sized(key_length=case.sizes.query_length, d_k=width, d_v=width))


PLAIN = frozenset({Feature.CORE, Feature.HEADS, Feature.KEY_VALUE, Feature.SCALE})
multi_head = Implementation(
    "onnxruntime.multi_head",
    Claims(
        Scope.OP,
        PLAIN | {Feature.VALUE_WIDTH, Feature.CROSS, Feature.FLOAT_MASK, Feature.CAUSAL},
        Conventions().claiming({"empty-row": "nan"}),
        dtypes=("float32",),
        fit=_added,
    ),
    numpy_op(multi_head_attention),
    "ONNX Runtime, operator MultiHeadAttention",
)
grouped_query = Implementation(
    "onnxruntime.grouped_query",
    Claims(
        Scope.OP,
        PLAIN | {Feature.GROUPED, Feature.SOFTCAP, Feature.WINDOW, Feature.SINKS},
        Conventions(window_count=WindowCount.INCLUDING),
        dtypes=("float32",),
        fit=_prompt,
        premises=Premises(causal=True),
    ),
    numpy_op(grouped_query_attention, implied=("is_causal",)),
    "ONNX Runtime, operator GroupQueryAttention",
)
