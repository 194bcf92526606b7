"""Functions that are passed weights as lists, of one matrix for each head."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing, refused

CROSS = """
def f(xq, xv, Wqs, Wks, Wvs, Wp):
    outs = []
    for w_q, w_k, w_v in zip({zipped}):
        q, k, v = xq @ w_q, xv @ w_k, xv @ w_v
        s = q @ k.swapaxes(-1, -2) / {width} ** 0.5
        p = np.exp(s - s.max(-1, keepdims=True))
        outs.append(p / p.sum(-1, keepdims=True) @ v)
    return np.concatenate(outs, -1) @ Wp
"""
ALONE = """
def f(x, w_queries, w_keys, w_values, w_out, causal=False):
    heads = []
    for w_q, w_k, w_v in zip(w_queries, w_keys, w_values):
        heads.append(attend(x @ w_q, x @ w_k, x @ w_v, causal=causal, scale={width} ** -0.5)[0])
    return torch.cat(heads{order}, -1) @ w_out
"""
IN_ORDER = "Wqs, Wks, Wvs"


@pytest.mark.parametrize(
    "text",
    [
        CROSS.format(zipped=IN_ORDER, width="k.shape[-1]"),
        ALONE.format(width="w_k.shape[-1]", order=""),
        ALONE.format(width="w_k.shape[-1]", order="").replace("w_queries", "Wqs").replace("w_keys", "Wks"),
    ],
)
def test_a_matrix_for_each_head(make: Make, text: str) -> None:
    assert_conforms(make(text), "float64")


@pytest.mark.parametrize(
    ("text", "clause"),
    [
        (CROSS.format(zipped="Wks, Wqs, Wvs", width="k.shape[-1]"), "cross-attention.*"),
        (CROSS.format(zipped=IN_ORDER, width="xq.shape[-1]"), "scores.dot-product"),
        (ALONE.format(width="x.shape[-1]", order=""), "scores.dot-product"),
    ],
)
def test_another_order_or_scale_is_a_mistake(make: Make, text: str, clause: str) -> None:
    assert failing(make(text), clause, "scores.dot-product", "projections.*", dtype="float64")


@pytest.mark.parametrize(
    "text",
    [
        CROSS.format(zipped="Wqs, Wvs, Wks", width="k.shape[-1]"),
        ALONE.format(width="w_k.shape[-1]", order="[::-1]"),
    ],
)
def test_values_through_other_matrices_are_refused(make: Make, text: str) -> None:
    assert "values" in refused(make, text)
