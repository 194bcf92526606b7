"""A conformance suite for attention: it reports whether an implementation is right, and which mistake it makes if not.

Everything that an adapter, a script or a test suite needs is imported from here. A name is loaded when it is first
used: importing the package alone imports neither torch nor NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attention_conformance.implementations.adapters.cached import Stream, cached, chunked
    from attention_conformance.implementations.adapters.jax_op import jax_op
    from attention_conformance.implementations.adapters.numpy_op import numpy_op
    from attention_conformance.implementations.adapters.torch_module import Packed, linears, torch_module
    from attention_conformance.implementations.adapters.torch_op import torch_op
    from attention_conformance.implementations.api.contract import (
        Claims,
        ExpectedFailure,
        Implementation,
        Result,
        Unsupported,
    )
    from attention_conformance.spec.cases import (
        Case,
        Embedding,
        Layout,
        MaskKind,
        MaskShape,
        ModuleForm,
        Padding,
        Pattern,
        Poison,
        Scores,
        Sharing,
        Sizes,
        Values,
    )
    from attention_conformance.spec.conventions import (
        AlibiRule,
        Alignment,
        CausalWithMask,
        Conventions,
        DefaultScale,
        DropoutSharing,
        EmptyRow,
        FullDropout,
        GroupOrder,
        LogBase,
        LogOfNothing,
        PaddedPositions,
        Polarity,
        ProductPrecision,
        ReturnedWeights,
        RotaryPairing,
        SinusoidOrder,
        SoftmaxPrecision,
        WindowCount,
    )
    from attention_conformance.spec.features import PLAIN_FEATURES, Extension, Feature, Packing, Scope
    from attention_conformance.spec.premises import Premises
    from attention_conformance.spec.problem import DTYPES, Array, Problem
    from attention_conformance.tests.harness.run.check import ClauseFailure, Conformance, Report, check
    from attention_conformance.tests.harness.run.parametrize import ClauseCheck, parametrize_with_clauses

__version__ = "0.1.0"
__all__ = [
    "DTYPES",
    "PLAIN_FEATURES",
    "AlibiRule",
    "Alignment",
    "Array",
    "Case",
    "CausalWithMask",
    "Claims",
    "ClauseCheck",
    "ClauseFailure",
    "Conformance",
    "Conventions",
    "DefaultScale",
    "DropoutSharing",
    "Embedding",
    "EmptyRow",
    "ExpectedFailure",
    "Extension",
    "Feature",
    "FullDropout",
    "GroupOrder",
    "Implementation",
    "Layout",
    "LogBase",
    "LogOfNothing",
    "MaskKind",
    "MaskShape",
    "ModuleForm",
    "Packed",
    "Packing",
    "PaddedPositions",
    "Padding",
    "Pattern",
    "Poison",
    "Polarity",
    "Premises",
    "Problem",
    "ProductPrecision",
    "Report",
    "Result",
    "ReturnedWeights",
    "RotaryPairing",
    "Scope",
    "Scores",
    "Sharing",
    "SinusoidOrder",
    "Sizes",
    "SoftmaxPrecision",
    "Stream",
    "Unsupported",
    "Values",
    "WindowCount",
    "__version__",
    "cached",
    "check",
    "chunked",
    "jax_op",
    "linears",
    "numpy_op",
    "parametrize_with_clauses",
    "torch_module",
    "torch_op",
]

_MODULES = (
    "attention_conformance.spec.conventions",
    "attention_conformance.spec.features",
    "attention_conformance.spec.cases",
    "attention_conformance.spec.premises",
    "attention_conformance.spec.problem",
    "attention_conformance.implementations.api.contract",
    "attention_conformance.implementations.adapters.numpy_op",
    "attention_conformance.implementations.adapters.jax_op",
    "attention_conformance.implementations.adapters.torch_op",
    "attention_conformance.implementations.adapters.torch_module",
    "attention_conformance.implementations.adapters.cached",
    "attention_conformance.tests.harness.run.check",
)
"""Where the names are defined. They are searched in this order: what takes long to import comes last."""
_OF_PYTEST = ("ClauseCheck", "parametrize_with_clauses")
"""Names whose module imports pytest, which an environment of candidates need not have, and nothing that takes long."""


def __getattr__(name: str) -> object:
    if name in __all__:
        modules = ("attention_conformance.tests.harness.run.parametrize",) if name in _OF_PYTEST else _MODULES
        for module in map(import_module, modules):
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
