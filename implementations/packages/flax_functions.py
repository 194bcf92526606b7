# /// script
# requires-python = ">=3.11"
# dependencies = ["flax==0.12.8", "jax==0.10.2", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["linen", "nnx"]
# ///
"""Flax: the functions dot_product_attention of its two interfaces, compiled, on the CPU."""

from flax import linen as flax_linen
from flax import nnx as flax_nnx

from attention_conformance import Feature, Implementation, jax_op
from attention_conformance.implementations.packages._jax_compiled import claims, compiled, one_width

linen = Implementation(
    "flax.linen",
    claims(Feature.VALUE_WIDTH),
    jax_op(compiled(flax_linen.dot_product_attention)),
    "flax.linen.dot_product_attention",
)
nnx = Implementation(
    "flax.nnx",
    claims(Feature.CAUSAL, Feature.GROUPED, fit=one_width),
    jax_op(compiled(flax_nnx.dot_product_attention)),
    "flax.nnx.dot_product_attention",
)
