"""Sizes that are None by default, where that raises, and settings that refuse what is no size."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

WIDTHS = """
class f(nn.Module):
    def __init__(self, {first}, num_heads, {other}=None):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj = nn.Linear({first}, {first}), nn.Linear({first}, {first})
        self.v_proj = nn.Linear({other}, {other})
        self.out_proj = nn.Linear({other}, {other})
    def forward(self, query, key, value):
        q, k, v = (split(p(x), self.num_heads) for p, x in
                   ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value)))
        s = q @ k.mT * q.shape[-1] ** {power}
        return self.out_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
SETTINGS = """
from dataclasses import dataclass

@dataclass
class Settings:
    {longest}: int
    {kind}: str
    n_embd: int = None
    n_head: int = None
    n_layer: int = None
    preset: str = None

    def __post_init__(self):
        given = all([self.n_embd, self.n_head, self.n_layer])
        assert given ^ (self.preset is not None), "give sizes or a preset"
        if self.{kind} not in ("decoder", "encoder"):
            raise ValueError("unknown kind")

class f(nn.Module):
    def __init__(self, config: Settings):
        super().__init__()
        self.heads = config.n_head
        self.qkv, self.proj = nn.Linear(config.n_embd, 3 * config.n_embd), nn.Linear(config.n_embd, config.n_embd)
        self.register_buffer("hidden", torch.ones(config.{longest}, config.{longest}).triu(1).bool())
    def forward(self, x):
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT * {width} ** -0.5
        s = s.masked_fill(self.hidden[: x.shape[1], : x.shape[1]], -torch.inf)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize("first", ["embed_dim", "d_model"])
@pytest.mark.parametrize("other", ["vdim", "out_dim"])
@pytest.mark.parametrize(("power", "wrong"), [("-0.5", False), ("0.0", True)])
def test_a_width_whose_default_raises_is_given_and_named(
    make: Make, first: str, other: str, power: str, wrong: bool
) -> None:
    made = make(WIDTHS.format(first=first, other=other, power=power))
    assert "None, its default, raises" in made.findings[other]
    assert failing(made, "scores.dot-product") == ({"scores.dot-product"} if wrong else set())


@pytest.mark.parametrize("longest", ["context_window", "longest_seq"])
@pytest.mark.parametrize(("width", "wrong"), [("q.shape[-1]", False), ("x.shape[-1]", True)])
def test_settings_that_check_what_they_are_given(make: Make, longest: str, width: str, wrong: bool) -> None:
    made = make(SETTINGS.format(longest=longest, kind="model_kind", width=width))
    assert made.claims.premises.causal
    assert failing(made, "scores.dot-product") == ({"scores.dot-product"} if wrong else set())
