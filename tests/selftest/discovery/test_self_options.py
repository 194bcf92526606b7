"""Options of modules with an optional context: one that says nothing of a context is judged in self-attention alone."""

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

OPTIONAL = '''
class f(nn.Module):
    """{said}"""
    def __init__(self, dim, heads{more}):
        super().__init__()
        self.h, self.q, self.kv, self.out = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        {made}
    def forward(self, x, context=None{given}):
        alone = context is None
        {first}
        k, v = (split(each, self.h) for each in self.kv(x if alone else context).chunk(2, -1))
        return self.out(attend(split(self.q(x), self.h), k, v, causal={flag})[0].transpose(1, 2).flatten(2))
'''
OWN = {"said": "", "more": "", "made": "pass", "given": ", causal=False", "first": "pass", "flag": "causal and alone"}
BUILT = {"more": ", causal=False", "made": "self.causal = causal", "given": "", "flag": "self.causal and alone"}
REFUSING = {"first": "assert alone or not causal, 'a context has no order'", "flag": "causal"}
CLAUSES = ("causal.no-future", "causal.square", "cross-attention.shared-inputs")


def is_stated(made: Implementation) -> bool:
    return any("self-attention alone" in each for each in made.stated)


@pytest.mark.parametrize(
    "changes", [{}, BUILT, REFUSING, {"said": "causal: hides later tokens; not used together with a context"}]
)
def test_a_flag_that_says_nothing_of_a_context_is_of_self_attention_alone(make: Make, changes: dict[str, str]) -> None:
    made = make(OPTIONAL.format(**{**OWN, **changes}))
    assert Feature.CAUSAL in made.claims
    assert Feature.CROSS in made.claims
    assert is_stated(made)
    assert not made.findings
    assert not failing(made, *CLAUSES)


@pytest.mark.parametrize(
    ("changes", "clauses"),
    [
        ({"flag": "False"}, set(CLAUSES)),
        ({"flag": "causal and not alone"}, {"cross-attention.shared-inputs"}),
        ({"said": "causal: hides later tokens, of a context as well"}, set(CLAUSES)),
        ({"said": "causal holds in self- and cross-attention alike"}, set(CLAUSES)),
    ],
)
def test_a_flag_that_is_ignored_elsewhere_fails(make: Make, changes: dict[str, str], clauses: set[str]) -> None:
    made = make(OPTIONAL.format(**{**OWN, **changes}))
    assert not is_stated(made)
    assert clauses <= failing(made, *CLAUSES)


def test_a_triangle_that_is_wrong_in_self_attention_fails(make: Make) -> None:
    wrong = {"first": "x = x.roll(-1, 1) if causal and alone else x"}
    assert "causal.no-future" in failing(make(OPTIONAL.format(**{**OWN, **wrong})), *CLAUSES)
