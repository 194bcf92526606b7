"""Tables that plain classes keep next to their weights, of cosines, sines and frequencies: they are no weights."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing
from attention_conformance.tests.selftest.discovery.test_array_holders import NUMPY

TABLES = {
    "a pair": (
        "self.cos, self.sin = np.cos(angles), np.sin(angles)",
        "c, s = self.cos[:x.shape[1]], self.sin[:x.shape[1]]",
    ),
    "halves of one": (
        "self.table = np.concatenate([np.cos(angles), np.sin(angles)], -1)",
        "c, s = np.split(self.table[:x.shape[1]], 2, -1)",
    ),
    "frequencies": (
        "self.frequencies = frequencies",
        "a = np.outer(np.arange(x.shape[1]), self.frequencies); c, s = np.cos(a), np.sin(a)",
    ),
}
ROTATED = (
    NUMPY
    + """
class f:
    def __init__(self, embed_dim, num_heads):
        self.h = num_heads
        frequencies = 10000.0 ** (-np.arange(0, embed_dim // num_heads, 2) / (embed_dim // num_heads))
        angles = np.outer(np.arange(256), frequencies)
        {kept}
        self.Wq, self.Wk, self.Wv, self.Wo = np.random.randn(4, embed_dim, embed_dim)
    def rotated(self, x):
        {taken}
        x = x.reshape(*x.shape[:2], self.h, -1)
        c, s = c[:, None], s[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * c - odd * s, even * s + odd * {second}], -1).reshape(*x.shape[:2], -1)
    def __call__(self, x):
        q, k = self.rotated(x @ self.Wq), self.rotated(x @ self.Wk)
        return joined(q, k, x @ self.Wv, self.h) @ self.Wo
"""
)


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize(("kept", "taken"), TABLES.values(), ids=TABLES)
def test_rotations_by_tables_are_judged_with_the_tables_as_they_are(
    make: Make, kept: str, taken: str, wrong: bool
) -> None:
    made = make(ROTATED.format(kept=kept, taken=taken, second="s" if wrong else "c"))
    assert not made.findings
    assert made.claims.premises.rotary_base == 10000.0 or wrong
    clauses = ("scores.dot-product", "values.weighted-sum", "scores.scale-default")  # and heads of two components
    assert bool(failing(made, *clauses, dtype="float64")) is wrong
