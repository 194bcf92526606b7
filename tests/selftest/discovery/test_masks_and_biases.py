"""Masks of keys next to numbers that are added to the scores, and answers that differ where weights are asked for."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

FUNCTION = '''
def f(q, k, v, {mask}=None, {bias}=None):
    """{mask}: (B, Lk), True for keys that may be seen."""
    s = q @ k.mT * q.shape[-1] ** -0.5
    if {bias} is not None:
        s = s + {bias}
    {condition} {mask} is not None:
        s = s.masked_fill(~{mask}[:, None, None], -torch.inf)
    return s.softmax(-1) @ v
'''
MODULE = '''
class f(nn.Module):
    def __init__(self, dim, context_dim=None, heads=4):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_kv = nn.Linear(dim, dim), nn.Linear(context_dim or dim, 2 * dim)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x, context, context_mask=None, attn_bias=None):
        """context_mask: (B, M), True for tokens that may be seen; attn_bias: (B, heads, N, M)."""
        added = attn_bias
        if context_mask is not None:
            added = torch.zeros(context_mask.shape).to(x).masked_fill(~context_mask, -torch.inf)[:, None, None]
            if attn_bias is not None:
                added = {both}
        q, k, v = (split(each, self.heads) for each in (self.to_q(x), *self.to_kv(context).chunk(2, -1)))
        return self.to_out(attend(q, k, v, added)[0].transpose(1, 2).flatten(2))
'''
ASKED = """
class f(nn.Module):
    def __init__(self, dim, num_heads, temperature=10.0):
        super().__init__()
        self.h, self.in_proj, self.out_proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.temperature = nn.Parameter(torch.full((num_heads, 1, 1), temperature))

    def forward(self, x, need_weights={default}):
        q, k, v = (split(each, self.h) for each in self.in_proj(x).chunk(3, -1))
        q, k = F.normalize(q, dim=-1) * self.temperature, F.normalize(k, dim=-1)
        output, weights, _ = attend(q, k, v, scale={scale})
        output = self.out_proj(output.transpose(1, 2).flatten(2))
        return (output, weights) if need_weights else output
"""


@pytest.mark.parametrize(("mask", "bias"), [("key_mask", "attn_bias"), ("mask", "bias"), ("padding_mask", "attn_bias")])
@pytest.mark.parametrize("condition", ["if", "elif"])
def test_a_bias_next_to_a_mask_of_keys(make: Make, mask: str, bias: str, condition: str) -> None:
    made = make(FUNCTION.format(mask=mask, bias=bias, condition=condition))
    assert {Feature.KEY_PADDING, Feature.FLOAT_MASK} <= made.claims.features
    assert_conforms(made)
    assert bool(failing(made, "masks.intersect", dtype="float64")) is (condition == "elif")


@pytest.mark.parametrize(("both", "wrong"), [("added + attn_bias", False), ("attn_bias", True)])
def test_a_bias_next_to_a_mask_of_a_context(make: Make, both: str, wrong: bool) -> None:
    made = make(MODULE.format(both=both))
    assert {Feature.KEY_PADDING, Feature.FLOAT_MASK} <= made.claims.features
    assert bool(failing(made, "masks.intersect", dtype="float64")) is wrong


@pytest.mark.parametrize("default", ["False", "True"])
@pytest.mark.parametrize(("scale", "wrong"), [("1.0", False), ("0.5 if need_weights else 1.0", True)])
def test_an_output_next_to_weights_that_are_asked_for(make: Make, default: str, scale: str, wrong: bool) -> None:
    made = make(ASKED.format(default=default, scale=scale))
    assert "which it refuses" not in made.about
    assert bool(failing(made, "relations.alternatives", "scores.dot-product", dtype="float64")) is wrong
