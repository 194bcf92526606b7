"""Modules of images (B, C, H, W) with linear layers, or with positions for both sides."""

from pathlib import Path

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.tests.selftest.discovery.making import START, Make, failing, write

PIXELS = """
class f(nn.Module):
    def __init__(self, D=1):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(D, D) for _ in range(4))
    def forward(self, x):
        b, c, h, w = x.shape
        x = x.{tokens}
        y = self.wo(attend(self.wq(x), self.wk(x), self.wv(x))[0])
        return y.{image}
"""
TOKENS, IMAGE = "flatten(2).mT", "mT.reshape(b, c, h, w)"
VIEWED, VIEWED_BACK = "reshape(b, h * w, c)", "reshape(b, c, h, w)"


@pytest.mark.parametrize(("tokens", "image"), [(TOKENS, IMAGE), (VIEWED, IMAGE)])
def test_channels_that_a_view_takes_for_tokens_are_a_mistake(make: Make, tokens: str, image: str) -> None:
    made = make(PIXELS.format(tokens=tokens, image=image))
    assert failing(made, "scores.dot-product") == (set() if tokens == TOKENS else {"scores.dot-product"})


def test_so_are_those_that_a_view_takes_back_though_nothing_shows_their_layout(tmp_path: Path) -> None:
    file = write(tmp_path, "viewed.py", START + PIXELS.format(tokens=VIEWED, image=VIEWED_BACK))
    assert failing(candidate(f"{file}:f", {}, in_part=True), "modules.as-built") == {"modules.as-built"}


SIDES = """
class f(nn.Module):
    def __init__(self, n_dims, width=14, height=14, heads=4):
        super().__init__()
        self.h = heads
        self.query, self.key, self.value = (nn.Conv2d(n_dims, n_dims, 1) for _ in range(3))
        self.rel_h = nn.Parameter(torch.randn(1, heads, n_dims // heads, 1, height))
        self.rel_w = nn.Parameter(torch.randn(1, heads, n_dims // heads, width, 1))
    def forward(self, x):
        q, k, v = (p(x).unflatten(1, (self.h, -1)).flatten(3) for p in (self.query, self.key, self.value))
        places = (self.rel_h + self.rel_w).flatten(3)
        s = q.mT @ (k + places) / math.sqrt({width})
        return (v @ s.softmax(-1).mT).reshape(x.shape)
"""


@pytest.mark.parametrize(("width", "wrong"), [("q.shape[2]", False), ("x.shape[1]", True)])
def test_positions_of_both_sides_are_built_for_a_square(make: Make, width: str, wrong: bool) -> None:
    made = make(SIDES.format(width=width))
    assert made.claims.premises.length == 16
    assert {"rel_h", "rel_w"} <= made.findings.keys()
    assert failing(made, "scores.dot-product") == ({"scores.dot-product"} if wrong else set())


NORMED = """
class f(nn.Module):
    def __init__(self, in_channels, num_groups=8, chunk=4):
        super().__init__()
        self.norm, self.chunk = nn.GroupNorm(num_groups, in_channels), chunk
        self.q, self.k, self.v, self.out = (nn.Conv2d(in_channels, in_channels, 1) for _ in range(4))
    def forward(self, x):
        y = self.norm(x)
        q, k, v = (p(y).flatten(2) for p in (self.q, self.k, self.v))
        s = torch.cat([each.mT @ q for each in k.split(self.chunk, 2)], 1) * {scale}
        return x + self.out((v @ s.softmax(1)).reshape(x.shape))
"""


@pytest.mark.parametrize(("scale", "wrong"), [("q.shape[1] ** -0.5", False), ("q.shape[2] ** -0.5", True)])
def test_groups_of_a_norm_are_no_heads(make: Make, scale: str, wrong: bool) -> None:
    made = make(NORMED.format(scale=scale))
    assert bool(failing(made, "scores.dot-product", "softmax.*", dtype="float64")) is wrong
