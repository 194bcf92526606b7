"""Functions that need logits of sinks and answer with all heads side by side, in a dictionary, always causal."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

SINKS = '''
def f(q, k, v, sinks, sm_scale=None, sliding_window=0):
    """Causal attention with sinks. q: (B, L, Hq, D), k, v: (B, L, Hkv, D), sinks: (Hq,); sliding_window: 0 = all"""
    (samples, length, heads, width), shared = q.shape, k.shape[2]
    scale = width**-0.5 if sm_scale is None else sm_scale
    s = torch.einsum("bqhgd,bkhd->bhgqk", q.unflatten(2, (shared, -1)), k) * scale
    at = torch.arange(length)
    hidden = at[None] > at[:, None]
    if sliding_window > 0:
        hidden = hidden | (at[None] <= at[:, None] - sliding_window)
    s = s.masked_fill(hidden, -torch.inf)
    gate = torch.sigmoid(s.logsumexp(-1, keepdim=True) - {sinks}[..., None, None])
    w = s.softmax(-1) * gate{slip}
    out = torch.einsum("bhgqk,bkhd->bqhgd", w, v)
    return {{"out": out.reshape(samples, length, -1), "weights": w.flatten(1, 2)}}
'''
RIGHT = {"sinks": "sinks.view(shared, -1)", "slip": ""}
SLIPS = {
    "added twice": {"slip": " * gate"},
    "left out of the sum": {"slip": " / gate"},
    "of other groups": {"sinks": "sinks.view(-1, shared).T"},
}


def test_needed_sinks_are_given_where_heads_are_merged(make: Make) -> None:
    made = make(SINKS.format(**RIGHT))
    assert made.claims.premises.causal
    assert not failing(made, "sinks.*", "window.*", dtype="float64")


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
def test_wrong_sinks_are_seen(make: Make, slip: dict[str, str]) -> None:
    assert failing(make(SINKS.format(**{**RIGHT, **slip})), "sinks.*", dtype="float64")
