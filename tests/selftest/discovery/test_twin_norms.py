"""Norms in pairs, of which one is not used; rows without keys that get a mean where positions weigh keys."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

NORMED = """
class f(nn.Module):
    def __init__(self, dim, num_heads, qk_norm=False):
        super().__init__()
        self.h, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        norm = nn.LayerNorm if qk_norm else nn.Identity
        self.{query}, self.{key} = norm(dim // num_heads), norm(dim // num_heads)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        q, k = self.{query}(q), self.{used}(k)
        return self.proj(attend(q, k, v)[0].transpose(1, 2).flatten(2))
"""
SLOPED = """
class f(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.h, self.qkv, self.out = n_heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        few = 2 ** int(math.log2(n_heads))
        usual, twice = (2.0 ** (-8.0 * torch.arange(1, n + 1).double() / n) for n in (few, 2 * few))
        slopes = torch.cat([usual, twice{every}])[:n_heads, None, None]
        self.register_buffer("slopes", slopes, persistent=False)
    def forward(self, x, key_padding_mask=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        behind = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        hidden = behind < 0
        if key_padding_mask is not None:
            hidden = hidden | key_padding_mask[:, None, None]
        s = q @ k.mT / q.shape[-1] ** 0.5 - (self.slopes * behind).to(q.dtype)
        s = s.masked_fill(hidden, torch.finfo(s.dtype).min)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("query", "key"), [("q_norm", "k_norm"), ("norm_q", "norm_k"), ("query_ln", "key_ln")])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_norm_that_is_not_used(make: Make, query: str, key: str, wrong: bool) -> None:
    text = NORMED.format(query=query, key=key, used=query if wrong else key)
    assert bool(failing(make(text), "modules.as-built")) is wrong


@pytest.mark.parametrize(("every", "wrong"), [("[::2]", False), ("", True)])
def test_a_mean_where_positions_weigh_keys(make: Make, every: str, wrong: bool) -> None:
    text = SLOPED.format(every=every)
    assert "a row without keys gets uniform" in make(text).stated
    found = failing(make(text), "gradients.query", "masks.key-padding", "causal.padded-start", "shapes.combinations")
    assert bool(found) is wrong
    assert not found & {"causal.padded-start"}
