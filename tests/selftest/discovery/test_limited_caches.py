"""Caches of a limited number of tokens: what fits into them is answered in pieces as in the whole, and no more."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing
from attention_conformance.tests.selftest.thorough import thorough

STREAMING = '''
class f(nn.Module):
    """{said}"""
    def __init__(self, dim, heads{more}):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.first, self.last = {limits}
        self.cache = None
    def reset(self):
        self.cache = None
    def kept(self, x):
        return torch.cat([x[:, :, : self.first], x[:, :, -self.last :]], 2) if {full} else x
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        if self.cache is not None:
            k, v = (torch.cat(pair, 2) for pair in zip(self.cache, (k, v)))
        self.cache = self.kept(k).detach(), self.kept(v).detach()
        own = torch.arange(x.shape[1])[:, None] + {before}
        seen = torch.arange(k.shape[2])[None] <= own
        return self.out(attend(q, k, v, seen)[0].transpose(1, 2).flatten(2))
'''
FEW = {
    "said": "Attention to sinks and recent tokens.",
    "more": ", sinks=2, recent=6",
    "limits": "sinks, recent",
    "full": "x.shape[2] > self.first + self.last",
    "before": "k.shape[2] - x.shape[1]",
}
NUMBERS = {"said": "", "more": ", sinks=4, cache_size=116", "limits": "sinks, cache_size - sinks"}
LATEST = {"said": "It remembers the last 30 tokens.", "more": "", "limits": "0, 30"}
CLAUSES = ("relations.alternatives", "modules.as-built")


@pytest.mark.parametrize(("changes", "most"), [({}, 9), pytest.param(NUMBERS, 117, marks=thorough), (LATEST, 31)])
def test_pieces_are_judged_as_far_as_a_cache_holds_them(make: Make, changes: dict[str, str], most: int) -> None:
    made = make(STREAMING.format(**{**FEW, **changes}))
    assert Feature.AS_BUILT in made.modes
    assert any(f"the first {most} are judged" in each for each in made.stated)
    assert not failing(made, *CLAUSES, dtype="float64")


def test_a_cache_that_is_longer_than_all_sequences_is_judged_in_all_of_them(make: Make) -> None:
    made = make(STREAMING.format(**{**FEW, "more": ", sinks=4, recent=300"}))
    assert not [each for each in made.stated if "cache" in each]
    assert not failing(made, *CLAUSES, dtype="float64")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"before": "0"}, marks=thorough),
        {"before": "min(self.last, k.shape[2] - x.shape[1] + 1)"},
        {"full": "True"},
        {"said": "", "more": "", "limits": "0, 30"},
        {"said": "", "more": "", "limits": "0, 1"},
    ],
    ids=["from the start", "one later", "sinks twice", "stated nowhere", "one token"],
)
def test_wrong_places_and_limits_that_nothing_states_fail(make: Make, changes: dict[str, str]) -> None:
    made = make(STREAMING.format(**{**FEW, **changes}))
    assert failing(made, *CLAUSES, dtype="float64")
