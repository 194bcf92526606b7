"""Functions that compute in float32: what that means for answers in float64 is no mistake."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

FILLED = """
def f(q, k, v, attn_mask=None, causal=False):
    s = q @ k.mT * q.shape[-1] ** -0.5
    keep = torch.ones(s.shape, dtype=torch.bool)
    keep = keep.tril() if causal else keep
    keep = keep if attn_mask is None else keep & attn_mask
    s = s.masked_fill(~keep, {fill})
    return s.float().softmax(-1).to(q.dtype) @ v
"""
LOWEST = "torch.finfo(s.dtype).min"
LOGS = """
def f(q, k, v):
    s = (q{inner} @ k{inner}.mT) * q.shape[-1] ** -0.5
    return (s.softmax(-1) @ v{inner}).to(q.dtype), s.logsumexp(-1).float()
"""


def test_the_lowest_number_of_float64_is_none_of_float32(make: Make) -> None:
    made = make(FILLED.format(fill=LOWEST))
    assert "a row without keys gets uniform in float32, and another answer in float64" in made.about
    for dtype in ("float64", "float32"):
        assert not failing(made, "masks.bool", "causal.flag", "scores.dot-product", dtype=dtype)


def test_where_the_answer_for_such_rows_is_chosen_they_are_left_out_as_well(make: Make) -> None:
    made = make(FILLED.format(fill=LOWEST), empty_row="uniform")
    assert "a row without keys gets nan in float64" in made.about
    assert not failing(made, "masks.bool", "causal.flag", "scores.dot-product", dtype="float64")


def test_a_fill_that_hides_nothing_is_a_mistake(make: Make) -> None:
    assert failing(make(FILLED.format(fill="-1.0")), "masks.bool")


def test_rows_without_keys_are_judged_where_float64_is_like_float32(make: Make) -> None:
    made = make(FILLED.format(fill="-1e9"))
    assert "in float64: what" not in made.about
    assert not failing(made, "masks.empty-row-bool")


@pytest.mark.parametrize(("inner", "wrong"), [(".float()", False), ("", True)])
def test_logs_in_float32_are_right_where_everything_is_in_float32(make: Make, inner: str, wrong: bool) -> None:
    made = make(LOGS.format(inner=inner))
    assert Feature.LOG_SUM_EXP in made.claims
    assert bool(failing(made, "softmax.log-sum-exp", dtype="float64")) is wrong


CAST_TO_FILL = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, attn_mask=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        s = q @ k.mT / q.shape[-1] ** 0.5
        if attn_mask is not None:
            s = {cast}.masked_fill(attn_mask, -torch.inf).to(s)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
WITH_A_MASK = "computes in float32 for inputs in float64 with a mask (product-precision=float32)"


@pytest.mark.parametrize(
    ("cast", "stated", "wrong"),
    [
        ("s.float()", True, False),
        ("s", False, False),
        ("s.float().float().roll(1, -1)", True, True),
        ("s.half()", False, True),
    ],
    ids=["float32", "as it is", "another key", "float16"],
)
def test_scores_that_are_cast_where_they_are_masked_alone(make: Make, cast: str, stated: bool, wrong: bool) -> None:
    made = make(CAST_TO_FILL.format(cast=cast))
    assert (WITH_A_MASK in made.stated) is stated
    assert bool(failing(made, "masks.bool", "scores.dot-product", dtype="float64")) is wrong
