"""Classes that pool tokens: one query a sample, whose answer has no axis of tokens."""

from pathlib import Path

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import START, failing, write

LEARNED = """
class f(nn.Module):
    '''One learned query reads all tokens. mask: (B, L), True = {meaning}.'''
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.query = heads, nn.Parameter(torch.randn(1, 1, dim))
        self.k, self.v, self.out = (nn.Linear(dim, dim) for _ in range(3))
    def forward(self, x, mask=None):
        q = split(self.query.expand(len(x), -1, -1), self.h)
        k, v = {keys}, split(self.v(x), self.h)
        y = attend(q, k, v, None if mask is None else mask[:, None, None])[0]
        return self.out(y.transpose(1, 2).flatten(1))
"""
KEYS = "split(self.k(x), self.h)"
BY_VIEW = "self.k(x).reshape(len(x), self.h, x.shape[1], -1)"
IMAGE = """
class f(nn.Module):
    def __init__(self, spacial_dim, embed_dim, num_heads, output_dim=None):
        super().__init__()
        self.h = num_heads
        self.positional_embedding = nn.Parameter(torch.randn(spacial_dim**2 + 1, embed_dim))
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(3))
        self.c_proj = nn.Linear(embed_dim, output_dim or embed_dim)
    def forward(self, x):
        x = x.flatten(2).mT
        x = torch.cat([x.mean({axes}, keepdim=True).expand(len(x), 1, -1), x], 1) + self.positional_embedding
        q, k, v = (split(each, self.h) for each in (self.q_proj(x[:, :1]), self.k_proj(x), self.v_proj(x)))
        return self.c_proj(attend(q, k, v)[0].transpose(1, 2).flatten(1))
"""
CHANNELS = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.h, self.qkv, self.out = num_heads, nn.Conv1d(embed_dim, 3 * embed_dim, 1), nn.Linear(embed_dim, embed_dim)
    def forward(self, x):
        x = torch.cat([x.mean(-1, keepdim=True), x], -1)
        q, k, v = (split(each{turned}, self.h) for each in self.qkv(x).chunk(3, 1))
        return self.out(attend(q[:, :, :1], k, v)[0].transpose(1, 2).flatten(1))
"""
COUNTED = """
class f(nn.Module):
    '''Pools frames with attentive weights. lengths: (B,) number of valid frames.'''
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.score = num_heads, nn.Sequential(nn.Linear(dim, 2 * dim), nn.Tanh(), nn.Linear(2 * dim, num_heads))
    def forward(self, x, lengths=None):
        s = self.score(x)
        valid = torch.ones_like(s) if lengths is None else torch.arange(x.shape[1])[:, None] < lengths[:, None, None]
        p = {weights}
        return torch.einsum("bth,bthd->bhd", p, x.unflatten(-1, (self.h, -1))).flatten(1)
"""
SEEN = "seen"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (LEARNED.format(keys=KEYS, meaning="valid"), False),
        (LEARNED.format(keys=KEYS, meaning=SEEN), False),
        (LEARNED.format(keys=KEYS, meaning="hidden"), True),
        (LEARNED.format(keys=BY_VIEW, meaning="valid"), True),
        (COUNTED.format(weights="s.masked_fill(valid == 0, -torch.inf).softmax(1)"), False),
        (COUNTED.format(weights="s.softmax(1) * valid"), True),
        (IMAGE.format(axes="1"), False),
        (CHANNELS.format(turned=".mT"), False),
        (CHANNELS.format(turned=".reshape(len(x), x.shape[2], -1)"), True),
    ],
)
def test_what_pools_is_judged_by_samples_order_and_masks(tmp_path: Path, text: str, wrong: bool) -> None:
    made = candidate(f"{write(tmp_path, 'mine.py', START + text)}:f", {}, in_part=True)
    assert made.claims.features == {Feature.AS_BUILT}
    assert bool(failing(made, "modules.as-built")) is wrong
