# /// script
# requires-python = ">=3.11"
# dependencies = ["jax==0.10.2", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["jax_nn"]
#
# [tool.attention-conformance.findings]
# jax_nn = """
# A bias of minus infinity that leaves a row none but later keys, with the causal flag: the row is answered with the
# values of those keys, as the flag writes a finite number over their scores. No report was found.
# """
# ///
"""JAX: jax.nn.dot_product_attention, compiled, on the CPU."""

import jax

from attention_conformance import Feature, Implementation, jax_op
from attention_conformance.implementations.packages._jax_compiled import claims, compiled, one_width

jax_nn = Implementation(
    "jax.nn",
    claims(Feature.SCALE, Feature.CAUSAL, Feature.GROUPED, fit=one_width),
    jax_op(compiled(jax.nn.dot_product_attention)),
    "jax.nn.dot_product_attention",
)
