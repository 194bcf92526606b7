# /// script
# requires-python = ">=3.11"
# dependencies = ["jax==0.10.2", "flax==0.12.8", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["jax_nn", "linen", "nnx"]
# ///
"""JAX and Flax: their functions dot_product_attention, on the CPU."""

from collections.abc import Callable
from typing import Any

import jax
from flax import linen as flax_linen
from flax import nnx as flax_nnx

from attention_conformance import PLAIN_FEATURES, Case, Claims, Conventions, Feature, Implementation, Scope, jax_op

DTYPES = ("float32", "bfloat16")
"""Two of the four: every shape is compiled, for each dtype."""


def _of(function: Callable[..., Any]) -> Callable[..., Any]:
    """(B, H, Lq, d_k), (B, Hk, Lk, d_k), (B, Hk, Lk, d_v) -> (B, H, Lq, d_v)."""

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, enable_gqa: bool = False, **options: Any
    ) -> Any:
        if attn_mask is not None:
            mask = attn_mask.reshape((1,) * (4 - attn_mask.ndim) + attn_mask.shape)
            options["mask" if mask.dtype == bool else "bias"] = mask
        return function(*(each.swapaxes(1, 2) for each in (query, key, value)), **options).swapaxes(1, 2)

    return attention


def _one_width(case: Case) -> Case:
    return case.sized(d_v=case.sizes.d_k)


def _claims(*added: Feature, **settings: str) -> Claims:
    conventions = Conventions().claiming(
        {"empty-row": "uniform"} | {k.replace("_", "-"): v for k, v in settings.items()}
    )
    features = PLAIN_FEATURES - {Feature.SCALE, Feature.CAUSAL} | {Feature.GRADIENTS, Feature.MASK_GRADIENT}
    return Claims(Scope.OP, features.union(added), conventions, DTYPES, _one_width)


jax_nn = Implementation(
    "jax.nn",
    _claims(Feature.SCALE, Feature.CAUSAL, Feature.GROUPED),
    jax_op(_of(jax.nn.dot_product_attention)),
    "jax.nn.dot_product_attention",
)
linen = Implementation(
    "flax.linen",
    _claims(Feature.VALUE_WIDTH),
    jax_op(_of(flax_linen.dot_product_attention)),
    "flax.linen.dot_product_attention",
)
nnx = Implementation(
    "flax.nnx",
    _claims(Feature.CAUSAL, Feature.GROUPED),
    jax_op(_of(flax_nnx.dot_product_attention)),
    "flax.nnx.dot_product_attention",
)
