# /// script
# requires-python = ">=3.11"
# dependencies = ["flax==0.12.8", "jax==0.10.2", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["nnx_value_width"]
#
# [tool.attention-conformance.findings]
# nnx_value_width = """
# Its documentation has a width of values of its own, v_depth_per_head; without dropout and a module it hands over to
# jax.nn.dot_product_attention, which refuses all but the width of the queries. No report was found.
# """
# ///
"""Flax: nnx.dot_product_attention with values of another width, as it is documented."""

from flax import nnx

from attention_conformance import Claims, Feature, Implementation, Scope, jax_op
from attention_conformance.implementations.packages._jax_compiled import compiled

nnx_value_width = Implementation(
    "flax.nnx.value_width",
    Claims(Scope.OP, frozenset({Feature.CORE, Feature.VALUE_WIDTH}), dtypes=("float32",)),
    jax_op(compiled(nnx.dot_product_attention)),
    "flax.nnx.dot_product_attention, with d_v of its own",
)
