"""Blocks of the Set Transformer: judged by the equation of the whole, next to which a mistake is seen."""

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, refused

BLOCK = """
class Block(nn.Module):
    def __init__(self, dim_q, dim_k, dim_v, num_heads, ln=False):
        super().__init__()
        self.num_heads, self.dim_v = num_heads, dim_v
        self.to_q, self.to_k, self.to_v = nn.Linear(dim_q, dim_v), nn.Linear(dim_k, dim_v), nn.Linear(dim_k, dim_v)
        self.first = nn.LayerNorm(dim_v) if ln else nn.Identity()
        self.second = nn.LayerNorm(dim_v) if ln else nn.Identity()
        self.feed = nn.Linear(dim_v, dim_v)
    def joined(self, x):
        return torch.cat(x.split(x.shape[-1] // self.num_heads, -1))
    def forward(self, x, y):
        q, k, v = self.to_q(x), self.to_k(y), self.to_v(y)
        a, b, c = map(self.joined, (q, k, v))
        p = (a @ b.mT / self.dim_v ** 0.5).softmax(-1)
        o = torch.cat((a + p @ c).split(len(x)), -1)
        o = self.first(o)
        return self.second(o + F.relu(self.feed(o)))
"""
ONE = BLOCK.replace("class Block", "class f")
POOLED = (
    BLOCK
    + """
class f(nn.Module):
    def __init__(self, dim, num_heads, num_seeds, ln=False):
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(1, num_seeds, dim))
        self.block = Block(dim, dim, dim, num_heads, ln)
    def forward(self, x):
        return self.block(self.seeds.expand(len(x), -1, -1), x)
"""
)
INDUCED = (
    BLOCK
    + """
class f(nn.Module):
    def __init__(self, dim_in, dim_out, num_heads, num_inds, ln=False):
        super().__init__()
        self.points = nn.Parameter(torch.randn(num_inds, dim_out))
        self.inner = Block(dim_out, dim_in, dim_out, num_heads, ln)
        self.outer = Block(dim_in, dim_out, dim_out, num_heads, ln)
    def forward(self, x):
        return self.outer(x, self.inner(self.points.expand(len(x), -1, -1), x))
"""
)
MODULES = {"one": ONE, "pooled": POOLED, "induced": INDUCED}
RIGHT = {
    "published": ("", ""),
    "each head's scale": ("self.dim_v ** 0.5", "(self.dim_v // self.num_heads) ** 0.5"),
    "input added": ("(a + p @ c).split(len(x)), -1)", "(p @ c).split(len(x)), -1) + x"),
    "another activation": ("F.relu", "F.gelu"),
    "normed first": ("q, k, v = self.to_q(x)", "y = self.first(y); q, k, v = self.to_q(x)"),
}
WRONG = {
    "over queries": ("softmax(-1)", "softmax(-2)"),
    "over the axis of all heads": ("softmax(-1)", "softmax(0)"),
    "keys for values": ("map(self.joined, (q, k, v))", "map(self.joined, (q, k, k))"),
    "heads merged by a view": ("torch.cat((a + p @ c).split(len(x)), -1)", "(a + p @ c).view(q.shape)"),
    "scaled late": ("(a @ b.mT / self.dim_v ** 0.5).softmax(-1)", "(a @ b.mT).softmax(-1) / self.dim_v ** 0.5"),
    "transposed": ("p @ c", "p.mT @ c"),
}


@pytest.mark.parametrize("text", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("change", RIGHT)
def test_a_right_one_is_judged_by_its_equation(make: Make, text: str, change: str) -> None:
    refused(make, text.replace(*RIGHT[change]) if change != "published" else text)
    made = candidate("mine.py:f", {}, in_part=True)
    if change != "normed first":  # a form that is not known
        assert "judged by the equation of the whole" in made.findings["its numbers"]
    (found,) = run(made, dtypes=("float32",))
    assert (found.clause, found.status) == ("modules.as-built", Status.PASS)


@pytest.mark.parametrize("text", MODULES.values(), ids=MODULES)
@pytest.mark.parametrize("change", WRONG)
def test_a_wrong_one_fails_by_its_equation(make: Make, text: str, change: str) -> None:
    if change == "transposed" and text is not ONE:
        return  # of other numbers of queries and keys it raises
    refused(make, text.replace(*WRONG[change]))
    made = candidate("mine.py:f", {}, in_part=True)
    assert "judged by the equation of the whole" in made.findings["its numbers"]
    (found,) = run(made, dtypes=("float32",))
    assert (found.clause, found.status) == ("modules.as-built", Status.FAIL)
