"""Module classes of unknown form: their answers keep what their text promises of the order of tokens."""

from pathlib import Path

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.tests.selftest.discovery.making import START, failing

ONE_KEY_HEAD = """
class f(nn.Module):
    def __init__(self, dim, heads=8, dim_head=32):
        super().__init__()
        self.h, self.d = heads, dim_head
        self.fused = nn.Linear(dim, heads * dim_head + 2 * dim_head, bias=False)
        self.proj = nn.Linear(heads * dim_head, dim, bias=False)
    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = self.fused(x).split((self.h * self.d, self.d, self.d), -1)
        s = torch.einsum("bihd,bjd->bhij", q.view(b, n, self.h, self.d) * self.d ** -0.5, k)
        causal_mask = torch.ones((n, n), dtype=torch.bool).triu({first})
        s = s.masked_fill(causal_mask, -torch.finfo(s.dtype).max)
        return self.proj(torch.einsum("bhij,bjd->bihd", s.softmax(-1), v).reshape(b, n, -1))
"""
TOKENS_FIRST = """
class f(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.n, self.d = num_attention_heads, hidden_size // num_attention_heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense_weight = nn.Parameter(torch.randn(hidden_size, hidden_size))
        self.dense_bias = nn.Parameter(torch.zeros(hidden_size))
    def forward(self, hidden_states):
        s, b, h = hidden_states.shape
        q, k, v = self.qkv(hidden_states).view(s, b * self.n, 3 * self.d).transpose(0, 1).chunk(3, -1)
        out = (q @ k.mT / self.d ** 0.5).softmax(-1) @ v
        return F.linear({merged}, self.dense_weight), self.dense_bias
"""
NAMED = """
class CausalLinear(nn.Module):
    '''Causal linear attention.'''
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        summed = (k[..., :, None] * v[..., None, :]).cumsum(2)  # over the prefix
        y = (q[..., None] * summed).sum(-2) / (q * {keys}).sum(-1, keepdim=True)
        return self.out(y.transpose(1, 2).flatten(2))

f = CausalLinear
"""
SHARED_VALUES = """
class f(nn.Module):
    def __init__(self, d_model, n_head):
        super().__init__()
        self.h, width = n_head, d_model // n_head
        self.q_layers, self.k_layers = (nn.ModuleList(nn.Linear(d_model, width) for _ in range(n_head)) for _ in "qk")
        self.v_layer, self.w_h = nn.Linear(d_model, width), nn.Linear(width, d_model, bias=False)
    def forward(self, q, k, v):
        each = [attend(wq(q), wk(k), self.v_layer(v))[0] for wq, wk in zip(self.q_layers, self.k_layers)]
        return self.w_h(torch.stack(each).mean(0))
"""
CASES = [
    (NAMED.format(keys="k.cumsum(2)"), False),
    (NAMED.format(keys="k.sum(2, keepdim=True)"), True),
    (SHARED_VALUES, False),
    (ONE_KEY_HEAD.format(first=1), False),
    (ONE_KEY_HEAD.format(first=0), True),
    (TOKENS_FIRST.format(merged="out.transpose(0, 1).reshape(s, b, h)"), False),
    (TOKENS_FIRST.format(merged="out.view(b, s, h).transpose(0, 1)"), True),
]


@pytest.mark.parametrize(("text", "wrong"), CASES)
def test_the_order_of_tokens_is_as_the_text_promises(tmp_path: Path, text: str, wrong: bool) -> None:
    (tmp_path / "mine.py").write_text(START + text)
    made = candidate(f"{tmp_path}/mine.py:f", {}, in_part=True)
    assert bool(failing(made, "modules.*", dtype="float64")) is wrong
