# /// script
# requires-python = ">=3.11"
# dependencies = ["keras==3.15.1", "jax==0.10.2", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["sdpa"]
# ///
"""Keras: ops.dot_product_attention with the backend jax, compiled, on the CPU."""

import os

os.environ["KERAS_BACKEND"] = "jax"
from keras import ops

from attention_conformance import Feature, Implementation, jax_op
from attention_conformance.implementations.packages._jax_compiled import claims, compiled, one_width

sdpa = Implementation(
    "keras.ops.jax",
    claims(Feature.SCALE, Feature.CAUSAL, Feature.GROUPED, fit=one_width),
    jax_op(compiled(ops.dot_product_attention)),
    "keras.ops.dot_product_attention on JAX",
)
