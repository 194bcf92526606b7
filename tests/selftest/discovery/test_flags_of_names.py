"""Flags of constructors that make a class causal: one that is called so is built with them, any other with both."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

LAYER = """
class {name}(nn.Module):
    def __init__(self, dim: int, num_heads: int, {flag}):
        super().__init__()
        self.heads, self.on = num_heads, {on}
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x):
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        return self.proj(attend(q, k, v, causal=self.on)[0].transpose(1, 2).flatten(2))
"""
CORE = """
class {name}(nn.Module):
    def __init__(self, {flag}):
        super().__init__()
        self.on = {on}
    def forward(self, q, k, v):
        return attend(q, k, v, causal=self.on)[0]
"""
FLAGS = {
    "is_decoder: bool": "is_decoder",
    "*, causal": "causal",
    "masked: bool": "masked",
    "autoregressive: bool = False": "autoregressive",
}


@pytest.mark.parametrize(
    ("text", "flag"), [*((LAYER, flag) for flag in FLAGS), *((CORE, flag) for flag in FLAGS if "=" not in flag)]
)
def test_what_is_called_causal_is_built_with_the_flag_that_makes_it_so(make: Make, text: str, flag: str) -> None:
    made = make(text.format(name="CausalAttention", flag=flag, on=FLAGS[flag]), "CausalAttention")
    assert made.claims.premises.causal
    assert_conforms(made)


@pytest.mark.parametrize("text", [LAYER, CORE], ids=["layer", "core"])
def test_a_flag_that_does_nothing_is_no_excuse(make: Make, text: str) -> None:
    made = make(text.format(name="CausalAttention", flag="is_decoder: bool", on=False), "CausalAttention")
    assert made.claims.premises.causal
    assert failing(made, "scores.dot-product", dtype="float64")


@pytest.mark.parametrize("flag", ["is_decoder: bool", "is_causal: bool", "is_decoder: bool = False"])
def test_any_other_class_is_built_with_and_without_it(make: Make, flag: str) -> None:
    made = make(LAYER.format(name="f", flag=flag, on=flag.partition(":")[0]))
    assert not made.claims.premises.causal
    assert Feature.CAUSAL in made.claims
    assert f"built with {flag.partition(':')[0]!r} for causal" in made.stated
    assert_conforms(made)
    assert not failing(made, "causal.square", dtype="float64")


SLIP = """        s = q @ k.mT / q.shape[-1] ** 0.5
        s = s.masked_fill(torch.ones(s.shape[-2:]).bool().triu({first}), {fill}) if self.on else s
        return self.proj((s.softmax(-1) @ v)"""


@pytest.mark.parametrize(("first", "fill", "judged"), [(2, "-torch.inf", True), (0, "-1e30", False)])
def test_a_triangle_that_a_needed_flag_draws_wrongly(make: Make, first: int, fill: str, judged: bool) -> None:
    """Each query sees one key too many, or the first one sees all of them."""
    text = LAYER.format(name="f", flag="is_decoder: bool", on="is_decoder")
    usual = "        return self.proj(attend(q, k, v, causal=self.on)[0]"
    made = make(text.replace(usual, SLIP.format(first=first, fill=fill)))
    assert ("no triangle" in made.findings.get("is_decoder", "")) is not judged
    assert not judged or failing(made, "causal.*", dtype="float64")


def test_a_flag_of_a_decoder_that_hides_nothing_is_no_finding(make: Make) -> None:
    made = make(LAYER.format(name="f", flag="is_decoder: bool = False", on="False"))
    assert Feature.CAUSAL not in made.claims
    assert "is_decoder" not in made.findings
    assert_conforms(made)
