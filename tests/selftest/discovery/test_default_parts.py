"""Modules among the defaults of a constructor, which are as wide as its own default."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

TABLED = """
class Table(nn.Module):
    def __init__(self, d_model, longest=4096):
        super().__init__()
        self.register_buffer("rows", torch.linspace(0, 1, longest)[:, None].repeat(1, d_model).cos())
    def forward(self, count):
        return self.rows[:count]

class f(nn.Module):
    def __init__(self, d_model=144, num_heads=4, positional_encoder=Table(144)):
        super().__init__()
        self.h, self.positional_encoder = num_heads, positional_encoder
        self.W_q, self.W_k, self.W_v, self.W_out = (nn.Linear(d_model, d_model) for _ in range(4))
        self.W_pos = nn.Linear(d_model, d_model, bias=False)
    def forward(self, x):
        q, k, v = (split(p(x), self.h) for p in (self.W_q, self.W_k, self.W_v))
        r = split(self.W_pos(self.positional_encoder(x.shape[1])[None]), self.h)
        s = q @ (k + r).mT / math.sqrt({width})
        return self.W_out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("width", "wrong"), [("q.shape[-1]", False), ("x.shape[-1]", True)])
def test_a_part_by_default_is_built_as_wide_as_the_module(make: Make, width: str, wrong: bool) -> None:
    made = make(TABLED.format(width=width))
    assert failing(made, "scores.dot-product") == ({"scores.dot-product"} if wrong else set())
