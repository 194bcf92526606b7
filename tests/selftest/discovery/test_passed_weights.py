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


OF_A_HEAD = """
class f:
    '''Weights are softmax(q k^T / sqrt({size})).'''

    def __init__(self, num_heads, {size}, value_size=None, model_size=None):
        self.h, self.k = num_heads, {size}
        self.v, self.d = value_size or {size}, model_size or {size} * num_heads

    def init(self, rng, query_dim):
        columns = {{"query": self.h * self.k, "key": self.h * self.k, "value": self.h * self.v}}
        made = {{name: rng.standard_normal((query_dim, n)) for name, n in columns.items()}}
        return {{**made, "linear": rng.standard_normal((self.h * self.v, self.d))}}

    def apply(self, params, query, key, value):
        inputs = {{"query": query, "key": key, "value": value}}
        q, k, v = (x @ params[n] for n, x in inputs.items())
        q, k, v = (y.reshape(*y.shape[:2], self.h, -1).transpose(0, 2, 1, 3) for y in (q, k, v))
        s = q @ k.swapaxes(-1, -2) / {scale} ** 0.5
        w = np.exp(s - s.max(-1, keepdims=True))
        y = w / w.sum(-1, keepdims=True) @ v
        return y.transpose(0, 2, 1, 3).reshape(*y.shape[::2], -1) @ params["linear"]
"""


@pytest.mark.parametrize("size", ["key_size", "head_size"])
@pytest.mark.parametrize(("scale", "wrong"), [("self.k", False), ("self.d", True)])
def test_width_of_a_head_next_to_that_of_the_inputs(make: Make, size: str, scale: str, wrong: bool) -> None:
    made = make(OF_A_HEAD.format(size=size, scale=scale))
    assert bool(failing(made, "scores.dot-product", "heads.independent", dtype="float64")) is wrong


def test_width_of_all_heads_next_to_that_of_the_inputs(make: Make) -> None:
    """A `key_size` that is shared by the heads, whatever the inputs are."""
    text = OF_A_HEAD.replace("self.h * self.k", "self.k").replace("self.h * self.v", "self.v")
    made = make(text.replace("{size} * num_heads", "{size}").format(size="key_size", scale="q.shape[-1]"))
    assert not failing(made, "scores.dot-product", "projections.value", dtype="float64")
