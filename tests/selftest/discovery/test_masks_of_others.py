"""Masks that belong to another input which is never given: alone they change nothing, and are named, not accused."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

MORE = """
def joined(q, k, v, {more}=None, shown=None):
    if {more} is None:
        return attend(q, k, v{alone})[0]
    others = {more}[:, None].expand(-1, q.shape[1], -1, -1)
    seen = torch.ones({more}.shape[:2]) > 0 if shown is None else shown
    seen = torch.cat([torch.ones(k.shape[0], k.shape[2]) > 0, seen], -1)[:, None, None]
    return attend(q, torch.cat([k, others], 2), torch.cat([v, others], 2), seen)[0]
"""
FUNCTION = """
def f(q, k, v, {more}=None, {mask}=None):
    return joined(q, k, v, {more}, {mask})
"""
PACKED = """
def f(qkv, heads, {more}=None, {mask}=None):
    q, k, v = (split(x, heads) for x in qkv.chunk(3, -1))
    return joined(q, k, v, {more}, {mask}).transpose(1, 2).flatten(2)
"""
MODULE = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.to_qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, {more}=None, {mask}=None):
        q, k, v = (split(each, self.heads) for each in self.to_qkv(x).chunk(3, -1))
        return self.out(joined(q, k, v, {more}, {mask}).transpose(1, 2).flatten(2))
"""
KINDS = {"function": FUNCTION, "packed": PACKED, "module": MODULE}
NAMES = [
    ("function", "context", "context_mask"),
    ("packed", "encoder_kv", "encoder_mask"),
    ("module", "cond", "cond_mask"),
]
LENGTHS = FUNCTION.replace("v, {more}, {mask}", "v, {more}, torch.arange(9) < {mask}[:, None] if {more} else None")


def text(kind: str, more: str, mask: str, alone: str = "") -> str:
    return (MORE + KINDS[kind]).format(more=more, mask=mask, alone=alone)


@pytest.mark.parametrize(("kind", "more", "mask"), NAMES)
def test_without_its_input_it_is_named(make: Make, kind: str, more: str, mask: str) -> None:
    made = make(text(kind, more, mask))
    assert made.findings[mask] == f"not judged: it belongs to {more!r}, which is not given"
    assert not {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.KEY_PADDING} & made.claims.features
    assert_conforms(made)


def test_lengths_are_named_alike(make: Make) -> None:
    made = make((MORE + LENGTHS).format(more="context", mask="context_lens", alone=""))
    assert "belongs to 'context'" in made.findings["context_lens"]
    assert Feature.VALID_LENS not in made.claims


@pytest.mark.parametrize(
    ("kind", "more", "mask"),
    [
        ("function", "context", "mask"),
        ("function", "memory", "context_mask"),
        ("module", "cond_bias_mask", "cond_mask"),
    ],
)
def test_a_mask_of_its_own_is_not_ignored(make: Make, kind: str, more: str, mask: str) -> None:
    made = make(text(kind, more, mask))
    assert "masks.bool" in failing(made, "masks.bool", dtype="float64")


@pytest.mark.parametrize(("hidden", "wrong"), [("shown", False), ("shown[..., :1]", True)])
def test_one_that_has_an_effect_alone_is_judged(make: Make, hidden: str, wrong: bool) -> None:
    made = make(text("function", "context", "context_mask", alone=f", None if shown is None else {hidden}"))
    assert "context_mask" not in made.findings
    assert bool(failing(made, "masks.bool", dtype="float64")) is wrong
