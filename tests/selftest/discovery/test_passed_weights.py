"""Plain classes that make their weights in one method and are passed them in each call."""

import pytest

from attention_conformance.spec.features import Scope
from attention_conformance.tests.selftest.discovery.making import Make, failing

PASSED = """
class f:
    def __init__(self, dim, heads):
        self.dim, self.heads = dim, heads

    def init(self, {key}):
        weights = {{n: {drawn} for n in ("wq", "wk", "wv", "wo")}}
        return {{"attn": weights}} if {deep} else weights

    def __call__(self, params, x):
        p = params["attn"] if {deep} else params
        q, k, v = (x @ p[n] for n in ("wq", "wk", {value}))
        q, k, v = (y.reshape(*y.shape[:2], self.heads, -1).transpose(0, 2, 1, 3) for y in (q, k, v))
        s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
        w = {xp}.exp(s - s.max(-1, keepdims=True))
        y = w / w.sum(-1, keepdims=True) @ v
        return y.transpose(0, 2, 1, 3).reshape(x.shape) @ p["wo"]
"""
NUMPY = {"xp": "np", "key": "rng", "drawn": "rng.standard_normal((self.dim, self.dim)) / 4"}
JAX = {
    "xp": "__import__('jax').numpy",
    "key": "key",
    "drawn": "__import__('jax').random.normal(key, (self.dim, self.dim)) / 4",
}


@pytest.mark.parametrize(("value", "wrong"), [('"wv"', False), ('"wk"', True)])
@pytest.mark.parametrize("deep", [False, True])
def test_weights_of_numpy(make: Make, deep: bool, value: str, wrong: bool) -> None:
    made = make(PASSED.format(deep=deep, value=value, **NUMPY))
    assert made.claims.scope is Scope.MODULE
    assert bool(failing(made, "projections.value", "scores.dot-product")) is wrong


@pytest.mark.parametrize(("value", "wrong"), [('"wv"', False), ('"wk"', True)])
def test_weights_of_jax(make: Make, value: str, wrong: bool) -> None:
    pytest.importorskip("jax")
    made = make(PASSED.format(deep=True, value=value, **JAX))
    assert made.claims.scope is Scope.MODULE
    assert bool(failing(made, "projections.value", "scores.dot-product")) is wrong
