"""Modules that answer where there are as many tokens as channels alone: they fail, and are not refused."""

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.tests.selftest.discovery.making import Make, failing

SQUARE = """
class f(nn.Module):
    def __init__(self, hidden_dim):
        super().__init__()
        self.W_q, self.W_k, self.W_v = (nn.Linear(hidden_dim, hidden_dim) for _ in range(3))
    def forward(self, q, k, v):
        q, k, v = self.W_q(q), self.W_k(k), self.W_v(v)
        return (({scores}) / q.shape[-1] ** 0.5).softmax(-1) @ v
"""


def judged(make: Make, text: str) -> set[str]:
    with pytest.raises(TargetError):
        make(text)
    return failing(candidate("mine.py:f", {}, in_part=True), "scores.dot-product")


def test_a_key_that_is_not_transposed_fails_with_what_it_raises(make: Make) -> None:
    assert judged(make, SQUARE.format(scores="q @ k")) == {"scores.dot-product"}


def test_its_right_twin_holds(make: Make) -> None:
    assert not failing(make(SQUARE.format(scores="q @ k.mT")), "scores.dot-product")


def test_what_raises_with_each_number_of_tokens_is_refused(make: Make) -> None:
    text = SQUARE.format(scores="q @ k.unknown")
    with pytest.raises(TargetError):
        make(text)
    with pytest.raises(TargetError):
        candidate("mine.py:f", {}, in_part=True)
