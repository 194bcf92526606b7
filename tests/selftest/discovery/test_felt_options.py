"""Options of a forward that the suite does not know: they are named, and earlier calls without change nothing."""

from __future__ import annotations

import pytest

from attention_conformance.implementations.discovery.values_tried import NOT_JUDGED
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make

LAYER = """
from torch import nn

class Layer(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.heads = n_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.kept = None

    def forward(self, x, {option}):
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)
        )
        s = q @ k.mT * q.shape[-1] ** -0.5
        {line}
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
PREFIX = """
        place = torch.arange(x.shape[1])
        if {stale}:
            self.kept = (place > place[:, None]) & (place >= prefix_len)
            self.made = prefix_len
        s = s.masked_fill(self.kept, -torch.inf)
"""


@pytest.mark.parametrize(
    ("stale", "wrong"),
    [
        ("self.kept is None or len(self.kept) != len(place) or self.made != prefix_len", False),
        ("self.kept is None or len(self.kept) != len(place)", True),
    ],
)
def test_what_is_kept_for_one_value_is_not_used_for_another(make: Make, stale: str, wrong: bool) -> None:
    made = make(LAYER.format(option="prefix_len=0", line=PREFIX.format(stale=stale)), name="Layer")
    assert made.findings == {"prefix_len": NOT_JUDGED}
    statuses = {each.status for each in run(made, ("modules.as-built",), ("float64",))}
    assert statuses == {Status.FAIL if wrong else Status.PASS}


@pytest.mark.parametrize(
    ("option", "line", "named"),
    [
        ("warmth=1.0", "s = s / warmth", True),
        ("strange=None", "s = s if strange is None else s * torch.as_tensor(strange).float().mean()", True),
        ("loud=False", "loud and torch.rand(1)", False),
        ("noisy=False", "s = s + torch.rand_like(s) if noisy else s", False),
    ],
)
def test_what_changes_the_answer_is_named(make: Make, option: str, line: str, named: bool) -> None:
    assert bool(make(LAYER.format(option=option, line=line), name="Layer").findings) is named


def test_a_mask_has_any_name(make: Make) -> None:
    line = "if shown is not None: s = s.masked_fill(~shown[:, None, None], -torch.inf)"
    made = make(LAYER.format(option="shown=None", line=line), name="Layer")
    assert made.findings == {}
    assert any("shown" in each for each in made.as_seen)


SLOPED = """
from torch import nn

class Layer(nn.Module):
    def __init__(self, dim, heads=4, causal=True):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1)
        )
        place = torch.arange(x.shape[1])
        ahead = place - place[:, None]
        slopes = 2.0 ** (-8.0 / self.heads * torch.arange(1, self.heads + 1))[:, None, None]
        s = q @ k.mT * q.shape[-1] ** -0.5 + slopes.to(q) * {bias}
        s = s.masked_fill(ahead > 0, -torch.inf) if self.causal else s
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("bias", "wrong"), [("-ahead.abs()", False), ("ahead", True)])
def test_what_is_causal_by_default_is_judged_without_that(make: Make, bias: str, wrong: bool) -> None:
    made = make(SLOPED.format(bias=bias), name="Layer")
    statuses = {each.status for each in run(made, ("modules.as-built",), ("float64",))}
    assert statuses == {Status.FAIL if wrong else Status.PASS}
