"""Weights in lists: of one matrix for each head, passed to functions, and of lists of layers in modules."""

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


LISTS = """
class f(nn.Module):
    def __init__(self, h, d_model):
        super().__init__()
        self.parts = nn.ModuleList([nn.ModuleList([nn.Linear(d_model, d_model // h) for _ in range({inner})])
                                    for _ in range({outer})])
        self.final = nn.Linear(d_model, d_model)
    def forward(self, query, key, value):
        heads = [attend(q(query), k(key), v(value){scale})[0] for q, k, v in {each}]
        return self.final(torch.cat(heads, -1))
"""
OF_HEADS = {"inner": "3", "outer": "h", "each": "self.parts"}
OF_ROLES = {"inner": "h", "outer": "3", "each": "zip(*self.parts)"}


@pytest.mark.parametrize("lists", [OF_HEADS, OF_ROLES], ids=["heads of roles", "roles of heads"])
def test_layers_in_lists_of_lists(make: Make, lists: dict[str, str]) -> None:
    assert_conforms(make(LISTS.format(scale="", **lists)), "float64")


@pytest.mark.parametrize("lists", [OF_HEADS, OF_ROLES], ids=["heads of roles", "roles of heads"])
def test_mistakes_next_to_lists_of_lists(make: Make, lists: dict[str, str]) -> None:
    wrong = make(LISTS.format(scale=", scale=query.shape[-1] ** -0.5", **lists))
    assert failing(wrong, "scores.dot-product", "heads.split", dtype="float64")


def test_values_of_keys_in_lists_of_lists_are_refused(make: Make) -> None:
    text = LISTS.format(scale="", **OF_HEADS)
    assert "parts.0.0.weight" in refused(make, text.replace("v(value)", "v(key)"))
