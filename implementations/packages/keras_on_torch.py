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
from attention_conformance.implementations.packages._handed_over import length_first


def _one_bias(case: Case) -> Case | Unsupported:
    """A bias goes on to torch alone, which takes it or the causal flag."""
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
    torch_op(length_first(ops.dot_product_attention)),
    "keras.ops.dot_product_attention on torch",
)
