"""Masks whose samples come last, as those of inputs (L, B, H, d) may: (Lk, B) of keys, and (Lq, Lk, B)."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

TEXT = """
def f(query, key, value, {name}=None):
    '''query: [tgt_len, batch, heads, dim]; {name}: bool {shape}, True at padding'''
    s = torch.einsum("ibhd,jbhd->ijbh", query, key) / query.shape[-1] ** 0.5
    if {name} is not None:
        s = s.masked_fill({name}[{at}], {fill})
    return torch.einsum("ijbh,jbhd->ibhd", s.softmax(1), value)
"""
WRONG = [("-torch.inf", False), ("0.0", True)]


@pytest.mark.parametrize("name", ["mask", "key_padding_mask"])
@pytest.mark.parametrize(("fill", "wrong"), WRONG)
def test_a_mask_of_keys_has_samples_last(make: Make, name: str, fill: str, wrong: bool) -> None:
    made = make(TEXT.format(name=name, shape="[src_len, batch]", at="None, :, :, None", fill=fill))
    assert Feature.KEY_PADDING in made.claims
    assert not made.findings
    assert bool(failing(made, "masks.padding*", dtype="float64")) is wrong


@pytest.mark.parametrize(("fill", "wrong"), WRONG)
def test_a_mask_of_queries_and_keys_has_samples_last(make: Make, fill: str, wrong: bool) -> None:
    made = make(TEXT.format(name="attn_mask", shape="[tgt_len, src_len, batch]", at="..., None", fill=fill))
    assert "its 'attn_mask' is given as (Lq, Lk, B)" in made.about
    assert bool(failing(made, "masks.bool", dtype="float64")) is wrong


NUMBERED = """
def f(query, key, value, num_heads, src_mask=None):
    '''query: (tgt_len, batch, embed_dim); src_mask: (src_len, batch), 1 for tokens and 0 for padding'''
    q, k, v = (x.reshape(*x.shape[:2], num_heads, -1) for x in (query, key, value))
    s = np.einsum("ibhd,jbhd->ijbh", q, k) / np.sqrt(q.shape[-1])
    if src_mask is not None:
        s = np.where(src_mask[:, :, None] == 0, {fill}, s)
    e = np.exp(s - s.max(1, keepdims=True))
    return np.einsum("ijbh,jbhd->ibhd", e / e.sum(1, keepdims=True), v).reshape(query.shape)
"""


@pytest.mark.parametrize(("fill", "wrong"), [("-1e300", False), ("0.0", True)])
def test_a_mask_of_numbers_with_samples_last(make: Make, fill: str, wrong: bool) -> None:
    made = make(NUMBERED.format(fill=fill))
    assert "its 'src_mask' mask is one of keys, (Lk, B)" in made.about
    assert bool(failing(made, "masks.padding*", dtype="float64")) is wrong
