"""Modules that always look through a window, and take padding: what empties a row together is no mistake."""

import pytest

from attention_conformance.spec.conventions import Polarity
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

CAUSAL, AROUND = "(ahead <= 0) & (ahead > -4)", "ahead.abs() <= 4"
WINDOWED = """
class f(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))
    def forward(self, x, attention_mask=None):
        q, k, v = (split(each(x), self.h) for each in (self.q, self.k, self.v))
        s = q @ k.mT / q.shape[-1] ** 0.5
        i = torch.arange(x.shape[1])
        ahead = i - i[:, None]
        near = {near}
        kept = torch.ones(x.shape[:2]) if attention_mask is None else attention_mask
        kept = kept[:, None, None].bool()
        {masked}
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
FILLED = "s = s.masked_fill(~near, {}).masked_fill(~kept, {})"
ADDED = "s = s + ~near * -1e9 + (~kept).float() * -1e9"
MIXED = FILLED.format("-torch.inf", "-1e9")


@pytest.mark.parametrize("near", [CAUSAL, AROUND])
@pytest.mark.parametrize("masked", [FILLED.format("-torch.inf", "-torch.inf"), FILLED.format("-1e9", "-1e9")])
def test_padding_within_a_window_is_judged(make: Make, near: str, masked: str) -> None:
    made = make(WINDOWED.format(near=near, masked=masked))
    assert made.claims.premises.window_left is not None
    assert made.claims.conventions.bool_mask is Polarity.MAY_ATTEND
    assert_conforms(made)


@pytest.mark.parametrize(("near", "masked"), [(CAUSAL, ADDED), (AROUND, MIXED)])
def test_rows_that_window_and_padding_empty_together_may_get_another_answer(make: Make, near: str, masked: str) -> None:
    made = make(WINDOWED.format(near=near, masked=masked))
    assert "rows that the window and padding empty together not claimed" in made.about
    assert_conforms(made)


@pytest.mark.parametrize("wrong", ["kept = kept | (i == 0)", "kept = kept[:1]"])
@pytest.mark.parametrize("masked", [FILLED.format("-torch.inf", "-torch.inf"), ADDED])
def test_wrong_padding_within_a_window_fails(make: Make, wrong: str, masked: str) -> None:
    assert failing(make(WINDOWED.format(near=AROUND, masked=f"{wrong}; {masked}")), "masks.key-padding")
