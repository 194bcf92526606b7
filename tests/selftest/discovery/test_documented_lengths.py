"""Functions that document which of queries and keys may be the more."""

import pytest

from attention_conformance.implementations.discovery.documented_lengths import states_no_more_queries
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

LAST = '''
def f(q, k, v):
    """Causal attention. {words}"""
    rows = torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2]
    s = q @ k.mT * q.shape[-1] ** -0.5
    s = s.masked_fill(torch.arange(k.shape[-2]) > rows % k.shape[-2]{less}, -torch.inf)
    return s.softmax(-1) @ v
'''
WORDS = ["q: (B, H, Lq, D), k: (B, H, Lk, D), Lq <= Lk.", "There are no more queries than keys.", "kv_len >= q_len."]


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize(("less", "wrong"), [("", False), (" - 1 * (rows > 4)", True)])
def test_more_queries_than_keys_are_not_judged_where_documentation_has_none(
    make: Make, words: str, less: str, wrong: bool
) -> None:
    made = make(LAST.format(words=words, less=less))
    assert any("more queries than keys not claimed" in note for note in made.unclaimed)
    if wrong:
        assert failing(made, "scores.*", "cross-attention.*", dtype="float64")
    else:
        assert_conforms(made, "float64")


@pytest.mark.parametrize("words", ["", "Lq >= Lk.", "q_len and kv_len may differ."])
def test_they_are_where_it_says_nothing_of_that(make: Make, words: str) -> None:
    assert failing(make(LAST.format(words=words, less="")), "causal.*", "cross-attention.*", dtype="float64")


@pytest.mark.parametrize(
    ("words", "always", "causal"),
    [("n_q ≤ n_k", True, True), ("with causal=True, Lq <= Lk", False, True), ("`Lk` <= `Lq`", False, False)],
)
def test_a_condition_on_causality_is_one(words: str, always: bool, causal: bool) -> None:
    def documented() -> None: ...

    documented.__doc__ = words
    assert states_no_more_queries(documented) is always
    assert states_no_more_queries(documented, causal=True) is causal
