"""Blocks that take one sample at a time, (L, E), with a norm before the attention and the input added after it."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

BLOCK = """
class f(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.h = num_heads
        self.norm = nn.LayerNorm(hidden_size, bias=False)
        self.qkv, self.out = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)
    def forward(self, x):
        n, _ = x.shape
        q, k, v = (each.view(n, self.h, -1).transpose(0, 1) for each in self.qkv(self.norm(x)).chunk(3, -1))
        s = q @ k.mT * {scale} ** -0.5
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
        return x + self.out((s.softmax(-1) @ v).transpose(0, 1).flatten(1))
"""


def test_what_it_adds_is_taken_away_in_each_sample(make: Make) -> None:
    made = make(BLOCK.format(scale="q.shape[-1]"))
    assert made.claims.premises.causal
    assert_conforms(made)


@pytest.mark.parametrize("scale", ["x.shape[-1]"])
def test_a_wrong_one_fails(make: Make, scale: str) -> None:
    assert failing(make(BLOCK.format(scale=scale)), "scores.*", dtype="float64")
