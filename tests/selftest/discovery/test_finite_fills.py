"""Later scores that are filled with a finite number: right above the usual ones, and a mistake below -10000."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

FUNCTION = """
def f(q, k, v, causal=False):
    s = q @ k.mT / q.shape[-1] ** 0.5
    return ({hide}.softmax(-1) if causal else s.softmax(-1)) @ v
"""
MODULE = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x{parameters}):
        q, k, v = (split(each, self.heads) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / q.shape[-1] ** 0.5
        {before}
        {also}
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
PADDING = "if padding is not None: s = s.masked_fill(padding[:, None, None], -1e9)"
HOLDERS = {
    "function": FUNCTION,
    "flag": MODULE.format(parameters=", causal=True", before="if causal: s = {hide}", also=""),
    "always": MODULE.format(parameters="", before="s = {hide}", also=""),
    "flag and padding": MODULE.format(
        parameters=", padding=None, causal=False", before="if causal: s = {hide}", also=PADDING
    ),
    "always and padding": MODULE.format(parameters=", padding=None", before="s = {hide}", also=PADDING),
}
LATER = "torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)"
CLAUSES = ("causal.any-scores", "softmax.very-negative", "causal.emptied-no-future")


def text(holder: str, number: float) -> str:
    return HOLDERS[holder].replace("{hide}", f"s.masked_fill({LATER}, {number})")


@pytest.mark.parametrize("number", [-1e9, float(-(2**32) + 1)])
@pytest.mark.parametrize("holder", HOLDERS)
def test_usual_numbers(make: Make, holder: str, number: float) -> None:
    made = make(text(holder, number))
    assert "the scores of later keys are filled with a finite number" in made.stated
    assert not failing(made, *CLAUSES, dtype="float64")


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_small_number(make: Make, holder: str) -> None:
    assert failing(make(text(holder, -1e4)), *CLAUSES, dtype="float64")


@pytest.mark.parametrize("holder", HOLDERS)
def test_infinity_is_none(make: Make, holder: str) -> None:
    made = make(text(holder, -1.0).replace("-1.0)", "-torch.inf)"))
    assert not [each for each in made.stated if "finite" in each]


def test_zeros_are_no_fill(make: Make) -> None:
    made = make(FUNCTION.replace("{hide}", f"(s * ~{LATER})"))
    assert failing(made, "causal.square", dtype="float64")
