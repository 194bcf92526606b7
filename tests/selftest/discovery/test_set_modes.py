"""Plain classes that are put into evaluation mode before they are called, and keep a triangle of their own."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms

MOODY = """
class Dropped:
    def set_mode(self, mode):
        self.mode = mode
    def __call__(self, x):
        return x if self.mode == {text} else x * 0

class f:
    def __init__(self, in_size, out_size, n_heads, n_timesteps):
        self.wq, self.wk, self.wv, self.wo = (torch.randn(in_size, in_size) / 4 for _ in range(4))
        self.mask = torch.{side}(torch.ones(n_timesteps, n_timesteps))
        self.h, self.dropped = n_heads, Dropped()
    def set_mode(self, mode):
        self.dropped.set_mode(mode)
    def forward(self, x):
        q, k, v = (split(x @ w, self.h) for w in (self.wq, self.wk, self.wv))
        s = q @ k.mT / q.shape[-1] ** 0.5
        s = s.masked_fill(self.mask[:x.shape[1], :x.shape[1]] {hidden}, -torch.inf)
        return self.dropped(s.softmax(-1) @ v).transpose(1, 2).flatten(2) @ self.wo
"""


@pytest.mark.parametrize("text", ["'test'", "'eval'"])
@pytest.mark.parametrize(("side", "hidden"), [("tril", "== 0"), ("ones_like", "== 0")])
def test_a_mode_is_set_and_a_triangle_is_no_weight(make: Make, text: str, side: str, hidden: str) -> None:
    made = make(MOODY.format(text=text, side=side, hidden=hidden))
    assert made.claims.premises.causal is (side == "tril")
    assert_conforms(made)


def test_its_own_key_that_a_triangle_hides_is_a_mistake(make: Make) -> None:
    made = make(MOODY.format(text="'test'", side="triu", hidden="== 1"))
    with pytest.raises(AssertionError, match=r"differ|is nan"):
        assert_conforms(made)
