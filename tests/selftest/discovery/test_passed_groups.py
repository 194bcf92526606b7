"""Functions that are passed weights and a number of heads of keys and values: fewer of these than of queries."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

FORMS = {
    "flat weights": """
def f(x, wq, wk, wv, wo, n_heads, n_kv_heads):
    q, k, v = (split(x @ w, n) for w, n in ((wq, n_heads), (wk, n_kv_heads), (wv, n_kv_heads)))
    k, v = {repeat}
    return attend(q, k, v)[0].transpose(1, 2).flatten(2) @ wo
""",
    "a number by default, keys and values together": """
def f(x, w_q, w_kv, w_o, num_heads, num_kv_heads=None):
    n_heads, n_kv_heads = num_heads, num_kv_heads or num_heads
    q, k, v = split(x @ w_q, n_heads), *(split(each, n_kv_heads) for each in (x @ w_kv).chunk(2, -1))
    k, v = {repeat}
    return attend(q, k, v)[0].transpose(1, 2).flatten(2) @ w_o
""",
    "a dictionary": """
def f(params, x, n_heads, n_kv_heads):
    q = split(x @ params["wq"], n_heads)
    k, v = (split(x @ params[name], n_kv_heads) for name in ("wk", "wv"))
    k, v = {repeat}
    return attend(q, k, v)[0].transpose(1, 2).flatten(2) @ params["wo"]
""",
    "NumPy": """
def f(x, wq, wk, wv, wo, n_heads, n_kv_heads):
    q, k, v = (np.moveaxis((x @ w).reshape(*x.shape[:2], n, -1), 2, 1)
               for w, n in ((wq, n_heads), (wk, n_kv_heads), (wv, n_kv_heads)))
    k, v = {repeat}
    s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.moveaxis(p / p.sum(-1, keepdims=True) @ v, 1, 2).reshape(*x.shape[:2], -1) @ wo
""",
}
RIGHT = "(x.repeat_interleave(n_heads // n_kv_heads, 1) for x in (k, v))"
TILED = "(x.repeat(1, n_heads // n_kv_heads, 1, 1) for x in (k, v))"
OF_NUMPY = {RIGHT: "(np.repeat(x, n_heads // n_kv_heads, 1) for x in (k, v))"}
OF_NUMPY[TILED] = "(np.tile(x, (1, n_heads // n_kv_heads, 1, 1)) for x in (k, v))"


def written(form: str, repeat: str) -> str:
    return FORMS[form].format(repeat=OF_NUMPY[repeat] if form == "NumPy" else repeat)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("repeat", [RIGHT, TILED])
def test_heads_that_share_keys_are_judged(make: Make, form: str, repeat: str) -> None:
    made = make(written(form, repeat))
    assert Feature.GROUPED in made.claims
    assert failing(made, "grouped.order", dtype="float64") == ({"grouped.order"} if repeat is TILED else set())
    if repeat is RIGHT:
        assert_conforms(made, "float64")


REFUSING = """
def f(x, wq, wk, wv, wo, n_heads, n_kv_heads):
    assert n_kv_heads == n_heads
    q, k, v = (split(x @ w, n_heads) for w in (wq, wk, wv))
    return attend(q, k, v)[0].transpose(1, 2).flatten(2) @ wo
"""
ALL_IN_ONE = """
def f(x, w_qkv, w_o, n_heads, n_kv_heads):
    d = x.shape[-1] // n_heads
    q, k, v = (x @ w_qkv).split([n_heads * d, n_kv_heads * d, n_kv_heads * d], -1)
    k, v = (split(each, n_kv_heads).repeat_interleave(n_heads // n_kv_heads, 1) for each in (k, v))
    return attend(split(q, n_heads), k, v)[0].transpose(1, 2).flatten(2) @ w_o
"""


@pytest.mark.parametrize("text", [REFUSING, ALL_IN_ONE])
def test_others_are_judged_with_a_head_of_keys_for_each(make: Make, text: str) -> None:
    made = make(text)
    assert Feature.GROUPED not in made.claims
    assert_conforms(made)
