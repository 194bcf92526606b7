"""Plain classes without weights that hold a cache: causal as their name promises, in whole and in pieces."""

import pytest

from attention_conformance.implementations.discovery.modules.held_caches import IN_PIECES
from attention_conformance.tests.selftest.discovery.making import Make, failing, make

__all__ = ["make"]

HELD = """
class CausalCache:
    def __init__(self, batch, max_len, heads, dim, dtype=torch.float32):
        self.keys = torch.zeros(batch, max_len, heads, dim, dtype=dtype)
        self.values, self.n = torch.zeros_like(self.keys), 0
    def reset(self):
        self.n = 0
    def __call__(self, q, k, v):
        t, end = q.shape[1], self.n + q.shape[1]
        self.keys, self.values = (torch.cat([c[:, : self.n], x, c[:, end:]], 1)
                                  for c, x in ((self.keys, k), (self.values, v)))
        seen = torch.arange(self.keys.shape[1]) <= {last}
        self.n = end
        return attend(*(x.transpose(1, 2) for x in (q, self.keys, self.values)), seen)[0].transpose(1, 2)
"""


@pytest.mark.parametrize(
    ("last", "wrong"),
    [
        ("self.n + torch.arange(t)[:, None]", set()),
        ("end - 1 + torch.zeros(t, 1)", {"scores.dot-product", "relations.alternatives"}),
        ("torch.arange(t)[:, None]", {"relations.alternatives"}),
    ],
)
def test_what_holds_a_cache_is_judged_in_whole_and_in_pieces(make: Make, last: str, wrong: set[str]) -> None:
    made = make(HELD.format(last=last), "CausalCache")
    assert IN_PIECES in made.alternatives
    assert made.claims.premises.causal
    assert failing(made, "scores.dot-product", "relations.alternatives") == wrong
