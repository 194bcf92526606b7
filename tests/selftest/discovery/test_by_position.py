"""Options that a function takes by position alone, as what maps axes does."""

import pytest

from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make
from attention_conformance.tests.selftest.thorough import thorough

WINDOW = """
def g(q, k, v, window{slash}):
    n = torch.arange(q.shape[-2])
    s = {scale} * (q @ k.mT)
    s = s.masked_fill((n[:, None] - n >= window) | (n > n[:, None]), -torch.inf)
    return s.softmax(-1) @ v
f = {made}
"""
MAPPED = "torch.func.vmap(g, in_dims=(0, 0, 0, None))"
SCALES = {Status.PASS: "q.shape[-1] ** -0.5", Status.FAIL: "q.shape[-1] ** -1"}


@pytest.mark.parametrize("status", SCALES)
@pytest.mark.parametrize("how", [{"slash": ", /", "made": "g"}, {"slash": "", "made": MAPPED}])
def test_a_window_by_position(make: Make, how: dict[str, str], status: Status) -> None:
    made = make(WINDOW.format(**how, scale=SCALES[status]))
    assert "given a window of all tokens in 'window'" in made.about
    (found,) = run(made, ("window.causal",), ("float64",))
    assert found.status is status, found.message


@pytest.mark.parametrize("flag", ["causal", "causal=False"])
def test_a_flag_and_a_scale_by_position(make: Make, flag: str) -> None:
    text = f"def f(q, k, v, {flag}, scale=None, /):\n    return attend(q, k, v, None, causal, scale)[0]\n"
    found = run(make(text), ("causal.square", "scale.factor"), ("float64",))
    assert [each.status for each in found] == [Status.PASS] * len(found)
    assert found


JAX = """
import jax
import jax.numpy as jnp
@functools.partial(jax.jit, static_argnums=3)
@functools.partial(jax.vmap, in_axes=(0, 0, 0, None))
def f(q, k, v, window):
    n = jnp.arange(q.shape[0])
    s = jnp.einsum("qhd,khd->hqk", q, k) / {by}
    s = jnp.where((n[:, None] - n >= window) | (n > n[:, None]), -jnp.inf, s)
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(s, -1), v)
"""


@thorough  # JAX compiles a program for each shape
@pytest.mark.parametrize(("by", "status"), [("jnp.sqrt(q.shape[-1])", Status.PASS), ("q.shape[-1]", Status.FAIL)])
def test_a_static_window_of_jax(make: Make, by: str, status: Status) -> None:
    pytest.importorskip("jax")
    (found,) = run(make(JAX.format(by=by)), ("window.causal",), ("float32",))
    assert found.status is status, found.message
