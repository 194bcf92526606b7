"""Layers that are given what they add to their answer, and slopes of keys, as those of BLOOM are."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

LAYER = """
class f(nn.Module):
    def __init__(self, hidden_size, n_head):
        super().__init__()
        self.h, self.d = n_head, hidden_size // n_head
        self.query_key_value, self.dense = nn.Linear(hidden_size, 3 * hidden_size), nn.Linear(hidden_size, hidden_size)
    def forward(self, hidden_states, residual, {slopes}):
        b, n, e = hidden_states.shape
        fused = self.query_key_value(hidden_states).view(b, n, self.h, 3, self.d)
        q, k, v = (fused[..., i, :].transpose(1, 2).reshape(-1, n, self.d) for i in range(3))
        scores = q @ k.mT * {scale}
        {added}
        out = (scores.softmax({axis}) @ v).view(b, self.h, n, self.d).transpose(1, 2).reshape(b, n, e)
        return {returned}
"""
ALIBI = {"slopes": "alibi", "added": "scores = scores + alibi", "scale": "self.d ** -0.5", "axis": "-1"}
BARE = {**ALIBI, "slopes": "head_mask=None", "added": ""}
ADDED = "residual + self.dense(out)"


@pytest.mark.parametrize("form", [ALIBI, BARE])
@pytest.mark.parametrize("axis", ["-1", "-2"])
def test_what_is_added_to_the_answer_is_left_out_and_seen_to_be_added(
    make: Make, form: dict[str, str], axis: str
) -> None:
    made = make(LAYER.format(**{**form, "axis": axis}, returned=ADDED))
    assert "residual" not in made.findings
    assert bool(failing(made, "scores.dot-product", "values.weighted-sum")) is (axis == "-2")


@pytest.mark.parametrize(
    "returned", ["self.dense(out)", "self.dense(out) - residual", "self.dense(out) + residual / 2"]
)
def test_what_is_not_added_is_named(make: Make, returned: str) -> None:
    assert "residual" in make(LAYER.format(**BARE, returned=returned)).findings
