"""torch.nn.functional.scaled_dot_product_attention and its CPU kernels, each a variant of its own."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_conformance.implementations.adapters.code_path import OnPath
from attention_conformance.implementations.adapters.modes import op_modes
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, ExpectedFailure, Implementation, Unsupported
from attention_conformance.spec.cases import Case
from attention_conformance.spec.conventions import CausalWithMask, Conventions
from attention_conformance.spec.features import PLAIN_FEATURES, Feature, Scope

SDPA_FEATURES = PLAIN_FEATURES | {
    Feature.GRADIENTS,
    Feature.MASK_GRADIENT,
    Feature.VIEWS,
    Feature.EMPTY_SIZES,
}
"""What the signature of scaled_dot_product_attention offers, apart from grouped heads and dropout."""


def _kernel(backend: SDPBackend) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: sdpa_kernel(backend)


def _flash_fit(case: Case) -> Case | Unsupported:
    """The CPU flash kernel has one head width, no gradient for a mask, and no dropout."""
    return case.sized(d_v=case.sizes.d_k)


NAN_SWALLOWED = ExpectedFailure(
    "numerics.nan-propagates",
    "the CPU flash kernel answers zeros for a query that holds NaN",
    "https://github.com/pytorch/pytorch/issues/141128",
    device="cpu",
)
LENGTH_UNCHECKED = ExpectedFailure(
    "errors.key-value-length",
    "the CPU flash kernel does not compare the lengths of key and value",
    "https://github.com/pytorch/pytorch/pull/193728",
    device="cpu",
)
MASK_BEFORE_SCALE = ExpectedFailure(
    "causal.any-scale",
    "the CPU flash kernel masks the future before it multiplies by the scale, as a cuDNN kernel was found to do: "
    "scale 0 and negative scales give NaN",
    "https://github.com/NVIDIA/cudnn-frontend/pull/804",
    device="cpu",
)
REFUSED_BY_ONE = ExpectedFailure(
    "conventions.causal-with-mask",
    "the composed kernel refuses a causal flag together with a mask, the CPU flash kernel applies both",
    "https://github.com/jingyaogong/minimind/issues/382",
    device="cpu",
)
_SPELLED: dict[str, Any] = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
_FLASH_DEVIATIONS = (NAN_SWALLOWED, LENGTH_UNCHECKED, MASK_BEFORE_SCALE)
_FLASH_LACKS = {Feature.VALUE_WIDTH, Feature.MASK_GRADIENT, Feature.DROPOUT}
_ALL = SDPA_FEATURES | {Feature.GROUPED, Feature.DROPOUT}
_CLAIMS = Claims(Scope.OP, _ALL, Conventions(causal_with_mask=CausalWithMask.EITHER))
_WAYS = {
    "with its defaults spelled out": torch_op(partial(F.scaled_dot_product_attention, **_SPELLED)),
    "in inference mode": torch_op(F.scaled_dot_product_attention, context=torch.inference_mode),
    "in tensors that were used before": torch_op(F.scaled_dot_product_attention, reused=True),
}

_MATH_MODES = op_modes(F.scaled_dot_product_attention, context=_kernel(SDPBackend.MATH))

TORCH_OPS = (
    Implementation(
        "torch.sdpa",
        replace(_CLAIMS, features=_ALL | {Feature.ALTERNATIVES}),
        torch_op(F.scaled_dot_product_attention),
        "scaled_dot_product_attention with the kernel that torch chooses",
        (*_FLASH_DEVIATIONS, REFUSED_BY_ONE),
        alternatives=_WAYS,
    ),
    Implementation(
        "torch.sdpa.math",
        replace(_CLAIMS, features=_CLAIMS.features.union(_MATH_MODES)),
        OnPath(torch_op(F.scaled_dot_product_attention, context=_kernel(SDPBackend.MATH)), "aten::_safe_softmax"),
        "scaled_dot_product_attention, composed of primitive operations",
        modes=_MATH_MODES,
    ),
    Implementation(
        "torch.sdpa.flash",
        replace(_CLAIMS, features=_ALL - _FLASH_LACKS | {Feature.LINEAR_MEMORY}, fit=_flash_fit),
        OnPath(
            torch_op(F.scaled_dot_product_attention, context=_kernel(SDPBackend.FLASH_ATTENTION)),
            "aten::_scaled_dot_product_flash_attention",
        ),
        "scaled_dot_product_attention, the fused CPU kernel",
        _FLASH_DEVIATIONS,
    ),
)

_BY_INDUCTOR = op_modes(F.scaled_dot_product_attention, Feature.COMPILED, backend="inductor")
SDPA_INDUCTOR = Implementation(
    "torch.sdpa.inductor",
    replace(_CLAIMS, features=_CLAIMS.features.union(_BY_INDUCTOR), dtypes=("float32",)),
    torch_op(F.scaled_dot_product_attention),
    "scaled_dot_product_attention, compiled to machine code in chapter modules",
    _FLASH_DEVIATIONS,
    modes=_BY_INDUCTOR,
)
"""It takes a C++ compiler and half a minute."""
