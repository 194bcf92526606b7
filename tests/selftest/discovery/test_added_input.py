"""Layers and blocks that add their input to what attention gives: which input that is, where it is stated."""

from __future__ import annotations

import pytest

from attention_conformance.implementations.discovery.modules.added_input import states_pre_norm
from attention_conformance.tests.selftest.discovery.making import Make, failing

LAYER = '''
class f(nn.Module):
    """{doc}"""
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.stem_norm, self.norm = num_heads, nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def attend(self, x):
        q, k, v = (split(t, self.h) for t in self.qkv(x).chunk(3, -1))
        return self.proj(attend(q, k, v)[0].transpose(1, 2).flatten(2))
    def forward(self, x):
        {body}
'''
RIGHT, WRONG = "return x + self.attend(self.norm(x))", "x = self.norm(x); return x + self.attend(x)"
STEM = "x = self.stem_norm(x); return x + self.attend(self.norm(x))"
BLOCK = '''
class f(nn.Module):
    """{doc}"""
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.ln_1, self.ln_2 = num_heads, nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
    def attend(self, x):
        q, k, v = (split(t, self.h) for t in self.qkv(x).chunk(3, -1))
        return self.proj(attend(q, k, v)[0].transpose(1, 2).flatten(2))
    def forward(self, x):
        {first}
        {second}
'''
FIRST, SECOND = "x = x + self.attend(self.ln_1(x))", "return x + self.mlp(self.ln_2(x))"
KEPT, KEPT_AGAIN = "x = self.ln_1(x); x = x + self.attend(x)", "x = self.ln_2(x); return x + self.mlp(x)"


@pytest.mark.parametrize(
    ("doc", "body", "wrong"),
    [
        ("x + Attn(norm(x)).", RIGHT, False),
        ("x + Attn(norm(x)).", WRONG, True),
        ("Attention with a norm and a residual.", WRONG, False),
        ("Pre-LN attention, whose tokens are normed as they come.", STEM, False),
    ],
)
def test_the_input_of_a_layer_is_added_where_that_is_stated(make: Make, doc: str, body: str, wrong: bool) -> None:
    assert bool(failing(make(LAYER.format(doc=doc, body=body)), "modules.as-built")) is wrong


@pytest.mark.parametrize(
    ("doc", "first", "second", "wrong"),
    [
        ("Pre-LN block.", FIRST, SECOND, False),
        ("Pre-LN block.", KEPT, SECOND, True),
        ("Pre-LN block.", KEPT, KEPT_AGAIN, True),
        ("A block.", KEPT, KEPT_AGAIN, False),
        ("Post-LN block.", "x = self.ln_1(x + self.attend(x))", "return self.ln_2(x + self.mlp(x))", False),
    ],
)
def test_the_input_of_a_block_is_added_to_its_attention(
    make: Make, doc: str, first: str, second: str, wrong: bool
) -> None:
    made = make(BLOCK.format(doc=doc, first=first, second=second))
    assert bool(failing(made, "modules.as-built")) is wrong
    assert any("mlp" in each for each in made.findings)


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("x + Attn(norm(x)).", True),
        ("Computes ``attn(norm(x)) + x``.", True),
        (r"Gives :math:`x + \text{Attn}(\text{LN}(x))`.", True),
        ("h = h + attn(ln_1(h)); h = h + mlp(ln_2(h))", True),
        ("LayerNorm(x + MHA(x))", False),
        ("norm(x) + attn(norm(x))", False),
        ("x + LN(attn(x))", False),
        ("x * a + attn(norm(x))", False),
        ("Post-norm: norm(x + attn(x)), not x + attn(norm(x)).", False),
    ],
)
def test_which_equations_state_that_the_input_is_added(text: str, states: bool) -> None:
    assert states_pre_norm(type("Layer", (), {"__doc__": text})) is states
