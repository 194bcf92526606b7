"""Classes of NumPy whose constructors take weights, and functions that take them in dictionaries."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

CLASS = """
class Attention:
    def __init__(self, q_weight, k_weight, v_weight, o_weight, {sizes}):
        self.h = {heads}
        self.w_q, self.w_k, self.w_v, self.w_o = q_weight.T, k_weight.T, v_weight.T, o_weight.T
        self.cache_k = np.zeros((64, 2048, self.h, 7))
    def __call__(self, x, start_pos, mask, freqs_cos, freqs_sin):
        q, k, v = (np.stack(np.split(x @ w, self.h, -1), 1) for w in (self.w_q, self.w_k, self.w_v))
        first, second = np.split(q, 2, -1)
        q = np.concatenate([first * freqs_cos - second * freqs_sin, second * freqs_cos + first * freqs_sin], -1)
        s = q @ k.swapaxes(-1, -2) / math.sqrt({scale})
        s = s if mask is None else s + mask
        p = np.exp(s - s.max(-1, keepdims=True))
        return np.concatenate([*(p / p.sum(-1, keepdims=True) @ v).swapaxes(0, 1)], -1) @ self.w_o
"""
SIZES = [("n_heads", "n_heads"), ("config", "config.n_heads")]


@pytest.mark.parametrize(("sizes", "heads"), SIZES)
def test_weights_given_to_a_constructor(make: Make, sizes: str, heads: str) -> None:
    made = make(CLASS.format(sizes=sizes, heads=heads, scale="q.shape[-1]"), "Attention")
    assert "judged without 'freqs_cos'" in made.about
    assert_conforms(made, "float64")


def test_a_wrong_one_is_accused(make: Make) -> None:
    made = make(CLASS.format(sizes="n_heads", heads="n_heads", scale="x.shape[-1]"), "Attention")
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(made, "float64")


LAYERS = """
def linear(x, w, b):
    return x @ w + b

def softmax(s):
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)

def f(x, {weights}, n_head):
    q, k, v = np.split({qkv}, 3, -1)
    heads = [np.split(each, n_head, -1) for each in (q, k, v)]
    mask = (1 - np.tri(len(x))) * -1e10
    heads = [softmax(q @ k.T / np.sqrt({width}) + mask) @ v for q, k, v in zip(*heads)]
    return {out}
"""
OF_LAYERS = {"weights": "c_attn, c_proj", "qkv": "linear(x, **c_attn)", "out": "linear(np.hstack(heads), **c_proj)"}
OF_KEYS = {
    "weights": "params",
    "qkv": 'np.concatenate([x @ params["W_q"], x @ params["W_k"], x @ params["W_v"]], -1)',
    "out": 'np.hstack(heads) @ params["W_o"]',
}


@pytest.mark.parametrize("parts", [OF_LAYERS, OF_KEYS], ids=["of layers", "of all weights"])
def test_weights_in_dictionaries(make: Make, parts: dict[str, str]) -> None:
    made = make(LAYERS.format(width="q.shape[-1]", **parts))
    assert made.claims.premises.causal
    assert_conforms(made, "float64")


def test_a_wrong_one_with_dictionaries_is_accused(make: Make) -> None:
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(make(LAYERS.format(width="x.shape[-1]", **OF_LAYERS)), "float64")


PROJECTIONS = """
def f(x, in_proj, out_proj, n_heads, causal=True):
    n, b, _ = x.shape
    q, k, v = (split(each.transpose(0, 1), n_heads) for each in torch.nn.functional.linear(x, in_proj).chunk(3, -1))
    y = attend(q, k, v, causal=causal, scale={scale})[0]
    return torch.nn.functional.linear(y.transpose(1, 2).flatten(2).transpose(0, 1), out_proj)
"""


@pytest.mark.parametrize(("scale", "wrong"), [("None", False), ("x.shape[-1] ** -0.5", True)])
def test_weights_that_are_named_as_layers(make: Make, scale: str, wrong: bool) -> None:
    assert bool(failing(make(PROJECTIONS.format(scale=scale)), "scores.*", "projections.*")) is wrong


FOLDED = """
def f(query, context, num_heads, in_proj_weight, in_proj_bias, out_proj_weight):
    heads, width = num_heads, query.shape[-1]
    w_q, w_k, w_v = {parts}
    b_q, _, b_v = in_proj_bias.reshape(3, heads, -1)
    content = torch.einsum("ble,hde->bhld", query, w_q) + b_q[:, None]
    s = torch.einsum("bhld,hde,bse->bhls", content, w_k, context) / {scale} ** 0.5
    mixed = torch.einsum("bhls,bse,hde->blhd", s.softmax(-1), context, w_v) {value_bias}
    return torch.nn.functional.linear(mixed.flatten(-2), out_proj_weight)
"""
PARTS = {
    "cut": "(w.reshape(heads, -1, width) for w in in_proj_weight.chunk(3, dim=0))",
    "reshaped": "in_proj_weight.reshape(3, heads, -1, width)",
}
"""At the width of a first call, either takes weights of the other axes too."""
RIGHT_FOLDED = {"scale": "w_q.shape[1]", "value_bias": "+ b_v"}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
def test_rows_of_weights_that_are_reshaped(make: Make, parts: str) -> None:
    assert_conforms(make(FOLDED.format(parts=parts, **RIGHT_FOLDED)), "float64")


@pytest.mark.parametrize("slip", [{"scale": "width"}, {"value_bias": ""}], ids=["scale", "bias"])
def test_a_wrong_one_whose_weights_are_reshaped(make: Make, slip: dict[str, str]) -> None:
    made = make(FOLDED.format(parts=PARTS["cut"], **{**RIGHT_FOLDED, **slip}))
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(made, "float64")
