# /// script
# requires-python = ">=3.11"
# dependencies = ["jax==0.10.2", "numpy==2.4.6", "ml_dtypes>=0.5"]
#
# [tool.attention-conformance]
# implementations = ["jax_nn"]
# ///
"""JAX: jax.nn.dot_product_attention, compiled, on the CPU."""

from typing import Any

import jax

from attention_conformance import Case, Feature, Implementation, Unsupported, jax_op
from attention_conformance.implementations.adapters.paging import lengths_of_samples
from attention_conformance.implementations.packages._handed_over import apart
from attention_conformance.implementations.packages._jax_compiled import STATIC, claims, one_width

OPTIONS = (Feature.SCALE, Feature.CAUSAL, Feature.GROUPED, Feature.WINDOW, Feature.KEY_PADDING)
LENGTHS = {"valid_lens": "key_value_seq_lengths", "query_lens": "query_seq_lengths"}


def attention(
    *inputs: Any,
    attn_mask: Any = None,
    key_padding_mask: Any = None,
    window_size: tuple[int, int] | None = None,
    enable_gqa: bool = False,
    **options: Any,
) -> Any:
    """(B, H, L, d) each; padding is a mask, next to which there may be a bias."""
    given = {
        LENGTHS.get(name, name): each.astype("int32") if name in LENGTHS else each for name, each in options.items()
    }
    given |= apart(attn_mask, "mask", "bias")
    if key_padding_mask is not None:
        given["mask"] = key_padding_mask[:, None, None, :] & given.get("mask", True)
    if window_size is not None:
        wide = inputs[0].shape[2] + inputs[1].shape[2]
        given["local_window_size"] = tuple(wide if side < 0 else side for side in window_size)
    return jax.nn.dot_product_attention(*(each.swapaxes(1, 2) for each in inputs), **given).swapaxes(1, 2)


def fit(case: Case) -> Case | Unsupported:
    """One width, and lengths for each sample."""
    return one_width(lengths_of_samples(case))


jax_nn = Implementation(
    "jax.nn",
    claims(*OPTIONS, Feature.VALID_LENS, Feature.QUERY_LENS, fit=fit),
    jax_op(jax.jit(attention, static_argnames=(*STATIC, "window_size"))),
    "jax.nn.dot_product_attention",
)
