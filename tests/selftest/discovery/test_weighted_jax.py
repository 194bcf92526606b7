"""Functions of JAX that are passed their weights: dictionaries by names, lists with axes of heads, and settings."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms
from attention_conformance.tests.selftest.thorough import thorough

pytest.importorskip("jax")
START = """
import jax
import jax.numpy as jnp
from dataclasses import dataclass

@dataclass(frozen=True)
class Sizes:
    vocabulary: int
    width: int
    n_heads: int

    def __post_init__(self):
        assert self.vocabulary > 0

def heads_of(x, heads):
    return jnp.moveaxis(x.reshape(*x.shape[:-1], heads, -1), -2, -3)

def joined(q, k, v, hide, width):
    s = q @ k.swapaxes(-1, -2) / jnp.sqrt(width)
    out = jax.nn.softmax(jnp.where(hide, -1e9, s), axis=-1) @ v
    return jnp.moveaxis(out, -3, -2).reshape(*out.shape[:-3], out.shape[-2], -1)

def later(x):
    return ~jnp.tril(jnp.ones((x.shape[-2],) * 2, dtype=bool))
"""
FORMS = {
    "settings first": """
def f(sizes_cfg: Sizes, block_params: dict, x: jax.Array, mask: jax.Array) -> jax.Array:
    q, k, v = (heads_of(x @ block_params[name], sizes_cfg.n_heads) for name in ("W_q", "W_k", "W_v"))
    return joined(q, k, v, ~mask, {width}) @ block_params["W_o"]
""",
    "a pair and a matrix": """
@jax.jit
def f(params, stream):
    (w, b), out = params
    q, k, v = jnp.split(jnp.einsum("td,hde->hte", stream, w) + b[:, None], 3, axis=-1)
    return joined(q, k, v, later(stream), {width}) @ out
""",
}
SLOW = {"settings first"}
"""Whose cases JAX compiles for a minute; the wrong scale is found in one of them."""
WIDTHS = {"settings first": "x.shape[-1]", "a pair and a matrix": "stream.shape[-1]"}


@pytest.mark.parametrize("form", [pytest.param(form, marks=thorough if form in SLOW else ()) for form in FORMS])
def test_right(make: Make, form: str) -> None:
    assert_conforms(make(START + FORMS[form].format(width="q.shape[-1]")), "float64")


@pytest.mark.parametrize("form", [pytest.param(form, marks=thorough if form in SLOW else ()) for form in FORMS])
def test_a_wrong_scale(make: Make, form: str) -> None:
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(make(START + FORMS[form].format(width=WIDTHS[form])), "float64")
