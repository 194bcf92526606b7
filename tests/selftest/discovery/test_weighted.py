"""Functions whose weights come in forms of their own: with sizes among them, in lists, with an axis of heads."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

TEXT = """
D_MODEL, N_HEADS = 64, 4

def softmax(s):
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)

def attend(q, k, v, h, width):
    q, k, v = (np.stack(np.split(each, h, -1), -3) for each in (q, k, v))
    return np.concatenate([*np.moveaxis(softmax(q @ k.swapaxes(-1, -2) / width**0.5) @ v, -3, 0)], -1)

def f({parameters}):
{body}
"""
FORMS = {
    "with sizes": (
        "x, params",
        """
    h = params["num_heads"]
    q, k, v = (x @ params[name] for name in ("Wq", "Wk", "Wv"))
    return attend(q, k, v, h, {width}) @ params["Wo"]""",
    ),
    "names of layers": (
        "params, x, batch_size, n_heads, scale",
        """
    assert len(x) == batch_size
    q, k, v = (x @ params[name] for name in ("q_linear", "k_linear", "v_linear"))
    return attend(q, k, v, n_heads, {width}) @ params["o_linear"]""",
    ),
    "lists": (
        "params, x, config",
        """
    (w, b), (w_o, b_o) = params
    q, k, v = np.split(x @ w + b, 3, -1)
    return attend(q, k, v, config.n_head, {width}) @ w_o + b_o""",
    ),
    "weights of layers": (
        "d_model: int, n_head: int, c_attn_w, c_attn_b, c_proj_w, c_proj_b, in_features: np.ndarray",
        """
    x = in_features
    q, k, v = np.split(x @ c_attn_w + c_attn_b, 3, -1)
    return attend(q, k, v, n_head, {width}) @ c_proj_w + c_proj_b""",
    ),
    "a count by default": (
        "x, params, n_heads=16",
        """
    q, k, v = (x @ params[name] for name in ("W_Q", "W_K", "W_V"))
    return attend(q, k, v, n_heads, {width}) @ params["W_O"]""",
    ),
    "keys first": (
        "X, heads, W_KQV, W_out",
        """
    x = X
    k, q, v = np.split(x @ W_KQV, 3, -1)
    return attend(q, k, v, heads, {width}) @ W_out""",
    ),
    "rows as in nn.Linear": (
        "x, qkv_weight, qkv_bias, out_weight, out_bias, n_head",
        """
    q, k, v = np.split(x @ qkv_weight.T + qkv_bias, 3, -1)
    return attend(q, k, v, n_head, {width}) @ out_weight.T + out_bias""",
    ),
    "axis of heads": (
        "x, w_q, w_k, w_v, w_o",
        """
    q, k, v = (np.einsum("...te,ehd->...htd", x, w) for w in (w_q, w_k, w_v))
    return np.einsum("...htd,hde->...te", softmax(q @ k.swapaxes(-1, -2) / {width}**0.5) @ v, w_o)""",
    ),
    "sizes in the file": (
        "params, x, layer_i",
        """
    q, k, v = (x @ params[f"block_{{layer_i}}_{{name}}"] for name in ("wq", "wk", "wv"))
    return attend(q, k, v, N_HEADS, {width}).reshape(*x.shape[:-1], D_MODEL) @ params[f"block_{{layer_i}}_wo"]""",
    ),
}
WIDTHS = {"axis of heads": "q.shape[-1]"}


def text(form: str, width: str) -> str:
    """The file, which divides scores by the root of the width."""
    parameters, body = FORMS[form]
    return TEXT.format(parameters=parameters, body=body.format(width=width))


@pytest.mark.parametrize("form", FORMS)
def test_weights_in_other_forms(make: Make, form: str) -> None:
    heads = {
        "with sizes": "h",
        "names of layers": "n_heads",
        "lists": "config.n_head",
        "weights of layers": "n_head",
        "a count by default": "n_heads",
        "keys first": "heads",
        "rows as in nn.Linear": "n_head",
    }.get(form, "N_HEADS")
    width = WIDTHS.get(form, f"(x.shape[-1] // {heads})")
    assert_conforms(make(text(form, width)), "float64")


@pytest.mark.parametrize("form", FORMS)
def test_wrong_ones_are_accused(make: Make, form: str) -> None:
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(make(text(form, "x.shape[-1]")), "float64")


VIEWED = """
def f(Q, K, V, WQ, WK, WV, W0, mask, embedding_dimension: int, number_of_heads: int):
    d = embedding_dimension // number_of_heads
    q, k, v = (split(x @ w.T, number_of_heads) for x, w in ((Q, WQ), (K, WK), (V, WV)))
    s = q @ k.mT / d**0.5 + mask.masked_fill(mask == 0, -torch.inf)
    return (s.softmax(-1) @ v).transpose(1, 2).reshape(*Q.shape[:2], -1) @ W0.T
"""
SPLIT = "(x @ w.T).view(len(x), number_of_heads, -1, d)"


@pytest.mark.parametrize("wrong", [False, True])
def test_rows_of_weights_are_read_where_heads_are_split_by_a_view(make: Make, wrong: bool) -> None:
    made = make(VIEWED.replace("split(x @ w.T, number_of_heads)", SPLIT) if wrong else VIEWED)
    assert failing(made, "scores.dot-product") == ({"scores.dot-product"} if wrong else set())


COLUMNS = """
def f({parameters}):
    q, k, v = (b + w @ X for w, b in ((omega_q, beta_q), (omega_k, beta_k), (omega_v, beta_v)))
{body}
"""
OF_COLUMNS = {
    "one head": (
        "X, omega_v, omega_q, omega_k, beta_v, beta_q, beta_k",
        "    s = k.T @ q / np.sqrt(len(q))\n    p = np.exp(s - s.max({axis}, keepdims=True))\n"
        "    return v @ (p / p.sum({axis}, keepdims=True))",
    ),
    "heads": (
        "X, H, omega_v, omega_q, omega_k, beta_v, beta_q, beta_k, omega_c",
        "    q, k, v = (each.reshape(H, len(X) // H, -1) for each in (q, k, v))\n"
        "    s = k.swapaxes(1, 2) @ q / np.sqrt(q.shape[1])\n"
        "    p = np.exp(s - s.max({axis} - 2, keepdims=True))\n"
        "    return omega_c @ (v @ (p / p.sum({axis} - 2, keepdims=True))).reshape(X.shape)",
    ),
}


@pytest.mark.parametrize(("axis", "wrong"), [("0", False), ("1", True)])
@pytest.mark.parametrize("form", OF_COLUMNS)
def test_tokens_may_be_columns(make: Make, form: str, axis: str, wrong: bool) -> None:
    parameters, body = OF_COLUMNS[form]
    made = make(COLUMNS.format(parameters=parameters, body=body.format(axis=axis)))
    assert ("scores.dot-product" in failing(made, "scores.dot-product", dtype="float64")) is wrong
    if not wrong:
        assert_conforms(made, "float64")
