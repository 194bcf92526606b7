"""Functions that document inputs of three axes next to those of four: each head alone, or all side by side."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

ALONE = '''
def f(q, k, v, causal=False):
    """Softmax attention.

    Many heads: q (B, H, Lq, D), k (B, H, Lk, D), v (B, H, Lk, Dv). One head: q (B, Lq, D), k (B, Lk, D), v (B, Lk, Dv).
    """
    single = q.ndim == 3
    if single:
        q, k, v = q[:, None], k[:, None], v[:, None]
    out = attend(q, k, v, causal=causal)[0]
    return out{taken} if single else out
'''
ONNX = """
def f(Q, K, V, attn_mask=None, *, is_causal=0, q_num_heads=None, kv_num_heads=None, scale=None):
    flat = Q.ndim == 3
    if flat:
        Q, K, V = (x.reshape(*x.shape[:2], n, -1).transpose(1, 2) for x, n in
                   ((Q, q_num_heads), (K, kv_num_heads), (V, kv_num_heads)))
    elif q_num_heads or kv_num_heads:
        raise ValueError("numbers of heads are for inputs of three axes")
    K, V = (x.repeat_interleave(Q.shape[1] // max(1, x.shape[1]), 1) for x in (K, V))
    y = attend(Q, K, V, attn_mask, bool(is_causal), scale)[0]
    return y{turned}.reshape(y.shape[0], y.shape[2], -1) if flat else y
"""


@pytest.mark.parametrize(("taken", "wrong"), [("[:, 0]", False), (".squeeze()", True)])
def test_each_head_alone(make: Make, taken: str, wrong: bool) -> None:
    made = make(ALONE.format(taken=taken))
    assert "without an axis of heads, (B, L, d)" in made.alternatives
    assert_conforms(made)
    assert bool(failing(made, "relations.alternatives")) is wrong


@pytest.mark.parametrize(("turned", "wrong"), [(".transpose(1, 2)", False), ("", True)])
def test_heads_side_by_side_as_in_onnx(make: Make, turned: str, wrong: bool) -> None:
    made = make(ONNX.format(turned=turned))
    assert "with all heads in one axis, (B, L, H * d)" in made.alternatives
    assert_conforms(made)
    assert bool(failing(made, "relations.alternatives")) is wrong


HEADS_IN_SAMPLES = """
def attention(q, k, v, num_heads, mask=None):
    '''q, k, v: (B * num_heads, L, head_dim); mask: (B, L), True = a key that may be seen.'''
    scores = torch.bmm(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5
    if mask is not None:
        {repeated}
        scores = scores.masked_fill(~mask[:, None], float("-inf"))
    return torch.bmm(scores.softmax(-1), v)
"""


@pytest.mark.parametrize(
    ("repeated", "wrong"),
    [("mask = mask.repeat_interleave(num_heads, 0)", False), ("mask = mask.repeat(num_heads, 1)", True)],
)
def test_heads_in_samples_and_masks_of_samples(make: Make, repeated: str, wrong: bool) -> None:
    made = make(HEADS_IN_SAMPLES.format(repeated=repeated), "attention")
    assert Feature.KEY_PADDING in made.claims.features

    assert bool(failing(made, "masks.key-padding")) is wrong


WITH_LENGTHS = '''
class f(nn.Module):
    """One head of attention.{words}"""
    def __init__(self, rate=0.0):
        super().__init__()
        self.drop = nn.Dropout(rate)
    def forward(self, queries, keys, values, valid_lens=None):
        queries, keys, values = (each.unsqueeze({at}) for each in (queries, keys, values))
        seen = None
        if valid_lens is not None:
            lengths = valid_lens if valid_lens.ndim == 2 else valid_lens[:, None].expand(-1, queries.shape[2])
            seen = (torch.arange(keys.shape[2]) {less} lengths[:, :, None])[:, None]
        return F.scaled_dot_product_attention(queries, keys, values, seen).squeeze({at})
'''
STATED = " queries: (batch_size, num_queries, d)"


@pytest.mark.parametrize("words", ["", STATED])
@pytest.mark.parametrize(("less", "wrong"), [("<", False), ("<=", True)])
def test_lengths_state_the_axes_where_one_more_would_be_broadcast(
    make: Make, words: str, less: str, wrong: bool
) -> None:
    made = make(WITH_LENGTHS.format(words=words, at=1, less=less))
    assert Feature.VALID_LENS in made.claims
    assert "called in its own layout (B * H, L, d)" in made.about
    assert bool(failing(made, "masks.valid-lens", "gradients.key", dtype="float64")) is wrong


def test_lengths_that_raise_are_wrong_where_four_axes_are_documented(make: Make) -> None:
    made = make(WITH_LENGTHS.format(words=" queries: (B, H, Lq, d)", at=1, less="<"))
    assert failing(made, "masks.valid-lens", dtype="float64")


def test_lengths_of_four_axes_stay_with_them(make: Make) -> None:
    text = WITH_LENGTHS.format(words=STATED, at=0, less="<").replace("queries.shape[2]", "queries.shape[-2]")
    made = make(text.replace("keys.shape[2]", "keys.shape[-2]").replace("[:, None]\n", "[None, :, None]\n"))
    assert "layout" not in made.about
    assert not failing(made, "masks.valid-lens", dtype="float64")
