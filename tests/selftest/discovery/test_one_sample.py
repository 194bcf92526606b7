"""Functions that take one sample without an axis of samples: they are called for each."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

SINKS = '''
def f(q, k, v, sinks, sliding_window=0):
    """Causal attention of one sequence with a sink a head.

    q: (T, H, d), k: (T, K, d), v: (T, K, d); consecutive heads share one of K; sinks: (H,). Returns (T, H * d).
    """
    T, H, d = q.shape
    groups = H // k.shape[1]
    k, v = ({repeated} for x in (k, v))
    s = torch.einsum("thd,shd->hts", q, k) / d**0.5
    gap = torch.arange(T)[:, None] - torch.arange(T)
    hide = (gap < 0) | (gap >= sliding_window) if sliding_window > 0 else gap < 0
    s = s.masked_fill(hide, -torch.inf)
    share = torch.sigmoid(s.logsumexp(-1) - sinks[:, None])
    return (torch.einsum("hts,shd->thd", s.softmax(-1), v) * share.T[..., None]).reshape(T, H * d)
'''
HEADS_FIRST = """
def f(q, k, v, slopes, mask=None):
    '''One sequence: q, k, v (n_heads, n, head_dim), slopes (n_heads,); mask (n, n) or (n_heads, n, n), True = seen.'''
    H, n, d = q.shape
    gap = (torch.arange(k.shape[1]) - torch.arange(n)[:, None]).abs()
    s = torch.einsum("hnd,hmd->hnm", q, k) / d**0.5 - slopes{each} * gap
    s = s if mask is None else s.masked_fill(~mask, -torch.inf)
    return torch.einsum("hnm,hmd->hnd", s.softmax(-1), v)
"""
SLOPED = """
def f(q, k, v):
    '''Causal attention with the slopes of ALiBi. q, k, v: (time, heads, dim).'''
    T, H, D = q.shape
    gap = np.arange(T)[:, None] - np.arange(T)
    slopes = 2.0 ** (-8.0 * np.arange(1, H + 1) / H)
    s = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(D) - slopes[:, None, None] * gap
    s = np.where(gap < 0, -np.inf, s)
    p = np.exp(s{less})
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v)
"""


@pytest.mark.parametrize(
    ("repeated", "wrong"), [("x.repeat_interleave(groups, 1)", False), ("x.repeat(1, groups, 1)", True)]
)
def test_tokens_before_heads(make: Make, repeated: str, wrong: bool) -> None:
    made = make(SINKS.format(repeated=repeated))
    assert "(L, H, d), and is called for each" in made.about
    assert {Feature.SINKS, Feature.GROUPED, Feature.WINDOW} <= made.claims.features
    assert bool(failing(made, "grouped.order", "sinks.sum")) is wrong


@pytest.mark.parametrize(("each", "wrong"), [("[:, None, None]", False), ("[:, None, None].mean()", True)])
def test_heads_before_tokens(make: Make, each: str, wrong: bool) -> None:
    made = make(HEADS_FIRST.format(each=each))
    assert Feature.BOOL_MASK in made.claims.features
    assert bool(failing(made, "positions.alibi", "masks.bool")) is wrong


@pytest.mark.parametrize(("less", "wrong"), [(" - s.max(-1, keepdims=True)", False), ("", True)])
def test_samples_are_no_further_heads_where_those_have_slopes(make: Make, less: str, wrong: bool) -> None:
    made = make(SLOPED.format(less=less))
    assert "(L, H, d), and is called for each" in made.about
    assert made.claims.premises.alibi
    assert bool(failing(made, "scores.dot-product", "softmax.large-scores", dtype="float64")) is wrong
