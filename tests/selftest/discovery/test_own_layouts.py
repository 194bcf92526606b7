"""Functions whose tokens are columns, or whose keys alone are, are judged; without a word on it that is a mistake."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

COLUMNS = '''
def f(q, k, v, scale=None, causal=False):
    """Attention of tokens as columns.

    q: (B, H, d, Lq); k: (B, H, d, Lk); v: (B, H, dv, Lk).
    """
    s = k.mT @ q * (q.shape[-2] ** -0.5 if scale is None else scale)
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).tril(-1), -torch.inf)
    return v @ s.softmax({over})
'''
ARRAYS = '''
def f(Q, K, V):
    """Q: (d, lx), K: (d, lz), V: (dv, lz), one column for each token."""
    S = K.T @ Q / np.sqrt({scaled})
    E = np.exp(S - S.max(axis=0, keepdims=True))
    return V @ (E / E.sum(axis=0, keepdims=True))
'''
CHANNELS = """
def f(q, k, v):
    s = q.mT @ k * q.shape[-1] ** -0.5
    return v @ s.softmax(-1).mT
"""
KEYS = '''
def f(q, k, v):
    """q: (B * H, Lq, D), k: (B * H, D, Lk), already transposed, v: (B * H, Lk, D)."""
    s = torch.bmm(q, k) * {of}.shape[-1] ** -0.5
    return torch.bmm(s.softmax(-1), v)
'''
LOGS = '''
def f(q, k, v, return_lse=False):
    """q: (B, Lq, H, D), k and v: (B, Lk, H, D); the log-sum-exp is the natural one, (B, H, Lq)."""
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    out = torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1), v)
    return (out, s.logsumexp(-1){divided}) if return_lse else out
'''


@pytest.mark.parametrize(("over", "wrong"), [(-2, False), (-1, True)])
def test_tokens_as_columns_are_judged_where_that_is_documented(make: Make, over: int, wrong: bool) -> None:
    made = make(COLUMNS.format(over=over))
    if wrong:
        assert failing(made, "softmax.over-keys")
        return
    assert "(B, H, d, L)" in made.about
    assert Feature.CAUSAL in made.claims
    assert_conforms(made)


@pytest.mark.parametrize(("scaled", "wrong"), [("Q.shape[0]", False), ("Q.shape[1]", True)])
def test_one_head_of_columns_is_judged(make: Make, scaled: str, wrong: bool) -> None:
    made = make(ARRAYS.format(scaled=scaled))
    assert bool(failing(made, "scores.dot-product", "softmax.over-keys", dtype="float64")) is wrong


def test_attention_along_the_width_is_a_mistake_without_a_word_on_it(make: Make) -> None:
    assert failing(make(CHANNELS), "scores.dot-product")


@pytest.mark.parametrize(("of", "wrong"), [("q", False), ("k", True)])
def test_transposed_keys_of_three_axes_are_taken(make: Make, of: str, wrong: bool) -> None:
    made = make(KEYS.format(of=of))
    if wrong:
        assert failing(made, "scores.dot-product")
    else:
        assert_conforms(made)


@pytest.mark.parametrize(("divided", "wrong"), [("", False), (" / math.log(2)", True)])
def test_what_is_returned_on_request_is_judged_in_other_layouts(make: Make, divided: str, wrong: bool) -> None:
    made = make(LOGS.format(divided=divided))
    assert Feature.LOG_SUM_EXP in made.claims
    assert bool(failing(made, "softmax.log-sum-exp")) is wrong


NAMED = '''
def f(query, key, value, num_heads):
    """query: ({axes}), key and value: ({axes})"""
    {turned}
    apart = lambda x: x.reshape({into}
    p = (apart(query) @ apart(key).mT / (query.shape[-1] / num_heads) ** 0.5).softmax(-1)
    merged = p @ apart(value)
    merged = merged{back}.reshape(query.shape)
    return merged{again}
'''
SPLIT_RIGHT, SPLIT_WRONG = (
    "*x.shape[:2], num_heads, -1).transpose(1, 2)",
    "len(x), num_heads, x.shape[1], -1)",
)
TURNS = {
    "B, L, E": ("pass", ""),
    "L, B, E": ("query, key, value = (x.transpose(0, 1) for x in (query, key, value))", ".transpose(0, 1)"),
}


@pytest.mark.parametrize("axes", TURNS)
@pytest.mark.parametrize(
    ("into", "back", "wrong"),
    [(SPLIT_RIGHT, ".transpose(1, 2)", False), (SPLIT_RIGHT, "", True), (SPLIT_WRONG, ".transpose(1, 2)", True)],
)
def test_heads_that_are_mixed_up_are_judged_by_the_names_of_the_inputs(
    make: Make, axes: str, into: str, back: str, wrong: bool
) -> None:
    turned, again = TURNS[axes]
    made = make(NAMED.format(axes=axes, turned=turned, into=into, back=back, again=again))
    assert bool(failing(made, "scores.dot-product", dtype="float64")) is wrong


FLAT = '''
def f(q, k, v, attention_mask, num_heads):
    """q, k, v: (B * num_heads, L, D). attention_mask: (B, L), 1 for tokens and 0 for padding."""
    samples, length = len(q) // num_heads, q.shape[1]
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1) | (attention_mask[:, None] == 0)
    hidden = hidden.{repeated}
    p = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, torch.finfo(q.dtype).min).softmax(-1)
    return (p @ v).view(samples, num_heads, length, -1).transpose(1, 2).reshape(samples, length, -1)
'''
REPEATED = [("repeat_interleave(num_heads, 0)", False), ("repeat(num_heads, 1, 1)", True)]


@pytest.mark.parametrize(("repeated", "wrong"), REPEATED)
def test_flat_heads_are_answered_side_by_side_next_to_a_needed_mask(make: Make, repeated: str, wrong: bool) -> None:
    made = make(FLAT.format(repeated=repeated))
    assert Feature.KEY_PADDING in made.claims.features
    assert not failing(made, "scores.*", dtype="float64")
    assert bool(failing(made, "masks.*", dtype="float64")) is wrong
