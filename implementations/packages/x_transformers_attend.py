# /// script
# requires-python = ">=3.11"
# dependencies = ["x-transformers==2.31.10", "torch==2.13.0", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["attend", "flash", "flash_argument"]
#
# [tool.attention-conformance.findings]
# attend = """
# In float64 a row without keys is NaN, with its gradients, and uniform in float32: the least finite number of float64,
# which is written over hidden scores, is minus infinity where the softmax is in float32. No report was found.
# """
# flash = """
# With flash=True and more queries than keys, the causal triangle starts in the top-left corner, and otherwise
# in the bottom-right one. No report was found.
# """
# flash_argument = """
# With flash=True, causal=True in the call is ignored: only the constructor's flag is read. No report was found.
# """
# ///
"""x-transformers: Attend, the function of query, key and value inside its Attention, in both forms.

Where a case is causal, Attend is built so; `flash_argument` gives `causal=True` in the call.
"""

from functools import cache
from typing import Any

import torch
from x_transformers.attend import Attend

from attention_conformance import (
    PLAIN_FEATURES,
    Case,
    Claims,
    Conventions,
    Feature,
    Implementation,
    Scope,
    Unsupported,
    torch_op,
)
from attention_conformance.implementations.packages._handed_over import apart

MASKS = frozenset({Feature.BOOL_MASK, Feature.FLOAT_MASK})
GRADIENTS = frozenset({Feature.GRADIENTS, Feature.VIEWS})
FEATURES = PLAIN_FEATURES - {Feature.SCALE} | GRADIENTS | {Feature.GROUPED, Feature.MASK_GRADIENT}
TILED = {"group-order": "tiled", "causal-alignment": "bottom-right"}


@cache
def _built(flash: bool, causal: bool) -> Attend:
    return Attend(flash=flash, causal=causal)


def _of(flash: bool, in_call: bool = False) -> Any:
    def attention(*inputs: torch.Tensor, attn_mask: Any = None, is_causal: bool = False, **_: Any) -> torch.Tensor:
        given = apart(attn_mask, "mask", "attn_bias") | ({"causal": is_causal} if in_call else {})
        attend = _built(flash, is_causal and not in_call)
        return attend(*inputs, **given)[0]  # type: ignore[no-any-return]

    return torch_op(attention)


def _several(case: Case) -> Case | Unsupported:
    """A single query is a step of decoding, and sees all keys."""
    if case.causal and case.sizes.query_length == 1:
        return Unsupported("takes no causal flag for a single query")
    return case


def _claims(features: frozenset[Feature], settings: dict[str, str]) -> Claims:
    return Claims(Scope.OP, features, Conventions().claiming(TILED | settings), fit=_several)


attend = Implementation(
    "x_transformers.attend",
    _claims(
        FEATURES,
        {
            "softmax-precision": "float32",
            "empty-row-float": "nan",
            "empty-row-causal": "uniform",
        },
    ),
    _of(False),
    "Attend, composed",
)
flash = Implementation(
    "x_transformers.attend.flash",
    _claims(FEATURES, {}),
    _of(True),
    "Attend(flash=True), through scaled_dot_product_attention",
)
flash_argument = Implementation(
    "x_transformers.attend.flash_argument",
    _claims(FEATURES - MASKS - {Feature.MASK_GRADIENT, Feature.GROUPED}, {}),
    _of(True, in_call=True),
    "the same, with causal=True in the call",
)
