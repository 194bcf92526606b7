"""The same function: modules by the option of another way to compute it, and after a sequence beyond a limit."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make
from attention_conformance.tests.selftest.discovery.test_whole_modules import is_caught

WAYS = """
class f(nn.Module):
    def __init__(self, dim, heads, {option}=False):
        super().__init__()
        self.h, self.qkv, self.out, self.other = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), {option}
        self.gate = nn.Linear(dim, dim)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        y = {other} if self.other else attend(q, k, v)[0]
        return self.out(y.transpose(1, 2).flatten(2) * self.gate(x).sigmoid())
"""


@pytest.mark.parametrize(
    ("option", "other", "wrong"),
    [
        ("use_flash", "F.scaled_dot_product_attention(q, k, v)", False),
        ("use_flash", "F.scaled_dot_product_attention(q, k, v, scale=x.shape[-1] ** -0.5)", True),
        ("upcast_attention", "attend(q.double(), k.double(), v.double())[0].to(x.dtype)", False),
        ("efficient", "F.scaled_dot_product_attention(q, k, v, is_causal=True)", True),
        ("causal", "F.scaled_dot_product_attention(q, k, v, is_causal=True)", False),
    ],
)
def test_another_way_gives_the_same_answer(make: Make, option: str, other: str, wrong: bool) -> None:
    assert is_caught(make, WAYS.format(option=option, other=other)) is wrong


LIMITED = """
class f(nn.Module):
    def __init__(self, dim, heads, max_position_embeddings=2048):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.most = max_position_embeddings
        self.turns = 10000.0 ** -(torch.arange(dim // heads // 2).double() / (dim // heads // 2))
    def rotated(self, x):
        n, (a, b) = x.shape[2], x.chunk(2, -1)
        turns = self.turns * ({stretched} if n > self.most else 1.0)
        {kept}
        angles = (torch.arange(n)[:, None] * turns).to(x.dtype)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        return self.out(attend(self.rotated(q), self.rotated(k), v, causal=True)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("kept", "wrong"),
    [("", False), ("self.most = max(self.most, n)", False), ("self.turns = turns", True)],
)
def test_nothing_is_left_of_a_sequence_beyond_the_limit(make: Make, kept: str, wrong: bool) -> None:
    stretched = "0.5" if "most" not in kept else "1.0"
    text = LIMITED.format(stretched=stretched, kept=kept)
    assert is_caught(make, text) is wrong


def test_a_limit_that_is_one_is_kept(make: Make) -> None:
    text = LIMITED.format(stretched="1.0", kept="assert n <= self.most")
    assert not is_caught(make, text)
