"""Plain classes that are given weights, or make their own, with fewer heads of keys and values than of queries."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

CALL = """
    def __call__(self, x):
        b, n, _ = x.shape
        q, k, v = ((x @ w).reshape(b, n, h, -1).swapaxes(1, 2)
                   for w, h in ((self.wq, self.h), (self.wk, self.g), (self.wv, self.g)))
        k, v = ({repeat} for each in (k, v))
        s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
        p = np.exp(s - s.max(-1, keepdims=True))
        return (p / p.sum(-1, keepdims=True) @ v).swapaxes(1, 2).reshape(b, n, -1) @ self.wo
"""
ROWS = """
class Attention:
    def __init__(self, wq, wk, wv, wo, n_heads, n_kv_heads=None):
        self.h, self.g = n_heads, n_kv_heads or n_heads
        self.wq, self.wk, self.wv, self.wo = wq.T, wk.T, wv.T, wo.T
"""
COLUMNS = """
class Attention:
    def __init__(self, num_heads, num_kv_heads, w_q, w_k, w_v, w_o):
        self.h, self.g = num_heads, num_kv_heads
        self.wq, self.wk, self.wv, self.wo = w_q, w_k, w_v, w_o
"""
SETTINGS = """
class Attention:
    def __init__(self, wq, wk, wv, wo, config):
        self.h, self.g = config.num_attention_heads, config.num_key_value_heads
        self.wq, self.wk, self.wv, self.wo = wq, wk, wv, wo
"""
OWN = """
class Attention:
    def __init__(self, dim, n_heads, n_kv_heads):
        rng = np.random.default_rng(0)
        self.h, self.g = n_heads, n_kv_heads
        self.wq, self.wo = rng.standard_normal((2, dim, dim))
        self.wk, self.wv = rng.standard_normal((2, dim, dim // n_heads * n_kv_heads))
"""
FORMS = {"rows": ROWS, "columns": COLUMNS, "settings": SETTINGS, "own weights": OWN}
RIGHT = "np.repeat(each, self.h // self.g, 1)"
TILED = "np.tile(each, (1, self.h // self.g, 1, 1))"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("repeat", [RIGHT, TILED])
def test_heads_that_share_keys_are_judged(make: Make, form: str, repeat: str) -> None:
    made = make(FORMS[form] + CALL.format(repeat=repeat), "Attention")
    assert Feature.GROUPED in made.claims
    assert failing(made, "grouped.order", dtype="float64") == ({"grouped.order"} if repeat is TILED else set())
    if repeat is RIGHT:
        assert_conforms(made, "float64")


REFUSING = "np.broadcast_to(each, q.shape) if each.shape[1] == self.h else refused"
OF_ALL_WEIGHTS = """
class Attention:
    def __init__(self, qkv_weight, wo, n_heads, n_kv_heads):
        self.h, self.g, self.wo = n_heads, n_kv_heads, wo
        d = wo.shape[0] // n_heads
        self.wq, self.wk, self.wv = np.split(qkv_weight, [n_heads * d, (n_heads + n_kv_heads) * d], -1)
"""


@pytest.mark.parametrize("text", [ROWS + CALL.format(repeat=REFUSING), COLUMNS + CALL.format(repeat=REFUSING)])
def test_others_are_judged_with_a_head_of_keys_for_each(make: Make, text: str) -> None:
    made = make(text, "Attention")
    assert Feature.GROUPED not in made.claims
    assert_conforms(made, "float64")


def test_weights_of_queries_next_to_those_of_keys(make: Make) -> None:
    assert_conforms(make(OF_ALL_WEIGHTS + CALL.format(repeat=RIGHT), "Attention"), "float64")
