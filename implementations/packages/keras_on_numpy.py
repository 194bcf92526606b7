# /// script
# requires-python = ">=3.11"
# dependencies = ["keras==3.15.1", "jax==0.10.2", "scipy==1.17.1", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["sdpa"]
#
# [tool.attention-conformance.findings]
# sdpa = """
# Fewer key heads than query heads are documented, and refused by the backend numpy unless there is one. The pull
# request that mended this for torch and TensorFlow, https://github.com/keras-team/keras/pull/23081, left it out.
# """
# ///
"""Keras: ops.dot_product_attention with the backend numpy, whose softmax is in float32."""

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "numpy"
import numpy as np
from keras import ops

from attention_conformance import (
    PLAIN_FEATURES,
    Array,
    Claims,
    Conventions,
    Feature,
    Implementation,
    Scope,
    numpy_op,
)
from attention_conformance.implementations.packages._handed_over import length_first


def attention(*inputs: Array, **options: Any) -> Array:
    """By length, as Keras has it."""
    return np.asarray(ops.dot_product_attention(*inputs, **options))


sdpa = Implementation(
    "keras.ops.numpy",
    Claims(
        Scope.OP,
        PLAIN_FEATURES | {Feature.GROUPED},
        Conventions().claiming({"empty-row": "uniform", "empty-row-float": "nan", "softmax-precision": "float32"}),
    ),
    numpy_op(length_first(attention)),
    "keras.ops.dot_product_attention on NumPy",
)
