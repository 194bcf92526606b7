"""Masks of functions of JAX in each form: gradients are those of traced masks, with which NumPy can do nothing."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing
from attention_conformance.tests.selftest.thorough import by_turns

START = "import jax\nimport jax.numpy as jnp\n"
WHOLE = """
@jax.jit
def f(query, key, value, mask=None):
    s = jnp.einsum("bqhd,bkhd->bhqk", query, key) * query.shape[-1] ** -0.5
    if mask is not None:
        samples, heads, length, keys = mask.shape
        s = jnp.where(mask, s, -jnp.inf) if mask.dtype == bool else s + mask{slip}
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s, -1), value)
"""
BIAS = """
def f(query, key, value, bias=None):
    s = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    if bias is not None:
        samples, heads, length, keys = bias.shape
        s = s + bias{slip}
    return jax.nn.softmax(s, -1) @ value
"""
TOGETHER = '''
def f(query, key, value, mask=None):
    """Attention. query: (B * H, L, d), key, value: (B * H, S, d), mask: (B * H, L, S)"""
    if mask is not None:
        assert mask.ndim == query.ndim == 3
    s = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
    if mask is not None:
        s = jnp.where(mask, s, -jnp.inf) if mask.dtype == bool else s + mask{slip}
    return jax.nn.softmax(s, -1) @ value
'''
FORMS = {"all axes": WHOLE, "a bias": BIAS, "samples and heads in one": TOGETHER}
CLAUSES = ("masks.float", "gradients.masked")


@pytest.mark.parametrize("text", by_turns([*FORMS.values()], len(FORMS)), ids=FORMS)
def test_traced_masks_come_in_each_form(make: Make, text: str) -> None:
    pytest.importorskip("jax", reason="JAX is not installed: pip install '.[jax]'")
    assert not failing(make(START + text.format(slip="")), *CLAUSES)


def test_wrong_gradients_of_traced_masks_are_seen(make: Make) -> None:
    pytest.importorskip("jax", reason="JAX is not installed: pip install '.[jax]'")
    made = make(START + BIAS.format(slip=" * 0.5 + jax.lax.stop_gradient(bias) * 0.5"))
    assert failing(made, "gradients.masked") == {"gradients.masked"}
