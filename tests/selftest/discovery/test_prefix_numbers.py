"""Prefix lengths of functions that hide later keys: every query sees so many first keys, however that is written."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

OF_TORCH = '''
def f(q, k, v, {parameters}):
    """{words}"""
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    n = torch.as_tensor({number}).reshape(-1, 1, 1, 1)
    seen = {seen}
    return attend(q, k, v, seen{causal})[0]
'''
OF_NUMPY = '''
def f(q, k, v, prefix_length=None):
    """Every query attends to all of the first `prefix_length` tokens, and else causally."""
    i, j = np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])
    s = np.where({seen}, q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v
'''
WORDS = "Causal. The first {name} tokens are visible to every query."
FORMS = {
    "needed": {"parameters": "prefix_len", "number": "prefix_len", "words": WORDS.format(name="prefix_len")},
    "by default": {
        "parameters": "num_prefix_tokens=0",
        "number": "num_prefix_tokens",
        "words": "Causal, but for a prefix of num_prefix_tokens keys, which is bidirectional.",
    },
    "of each sample": {
        "parameters": "prefix_lens=None",
        "number": "0 if prefix_lens is None else prefix_lens",
        "words": "prefix_lens: (batch,). A key j is seen where j < prefix_lens, or by later queries.",
    },
}
RIGHT = "(j <= i) | (j < n)"
SLIPS = {
    "of queries": "(j <= i) | (i < n)",
    "one more": "(j <= i) | (j <= n) & (n > 0)",
    "one fewer": "(j <= i) & (n == 0) | (n > 0) & ((j < n - 1) | (j <= i) & (i >= n - 1))",
    "alone": "torch.where(n > 0, (j < n) & (j == j[:, None] * 0 + j), j <= i)",
    "of the first sample": "(j <= i) | (j < n[:1])",
}


def written(form: str, seen: str, causal: str = "") -> str:
    return OF_TORCH.format(seen=seen, causal=causal, **FORMS[form])


@pytest.mark.parametrize("form", FORMS)
def test_a_prefix_that_all_see(make: Make, form: str) -> None:
    made = make(written(form, RIGHT))
    assert not made.findings
    assert failing(made, "relations.alternatives", dtype="float64") == set()
    assert_conforms(made, "float64")


@pytest.mark.parametrize(("form", "slip"), [(f, s) for f in FORMS for s in SLIPS if "sample" not in s or "sample" in f])
def test_another_prefix_is_a_mistake(make: Make, form: str, slip: str) -> None:
    made = make(written(form, SLIPS[slip]))
    assert not made.findings
    assert failing(made, "relations.alternatives", dtype="float64") == {"relations.alternatives"}


@pytest.mark.parametrize(
    ("seen", "wrong"),
    [("(j <= i) | (j < (prefix_length or 0))", False), ("(j <= i) | (i < (prefix_length or 0))", True)],
)
def test_in_numpy(make: Make, seen: str, wrong: bool) -> None:
    made = make(OF_NUMPY.format(seen=seen))
    assert not made.findings
    assert bool(failing(made, "relations.alternatives", dtype="float64")) is wrong


FLAGGED = '''
def f(q, k, v, is_causal=False, prefix_len=0):
    """prefix_len: with is_causal, the first keys that all queries see, in both directions."""
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    return attend(q, k, v, (j <= i) | ({of} < prefix_len) if is_causal else None)[0]
'''


@pytest.mark.parametrize(("of", "wrong"), [("j", False), ("i", True)])
def test_next_to_a_flag(make: Make, of: str, wrong: bool) -> None:
    made = make(FLAGGED.format(of=of))
    assert not made.findings
    assert bool(failing(made, "relations.alternatives", dtype="float64")) is wrong


UNSTATED = '''
def f(q, k, v, prefix_len=0):
    """{words}"""
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    return attend(q, k, v, {seen})[0]
'''


@pytest.mark.parametrize(
    ("words", "seen", "known"),
    [
        ("Causal attention.", "(j <= i) | (j < prefix_len)", True),
        ("Causal attention.", "j <= i + prefix_len", False),
        ("The first prefix_len keys are a memory, visible to all.", "j <= i + prefix_len", False),
    ],
)
def test_what_no_text_states_is_seen_or_named(make: Make, words: str, seen: str, known: bool) -> None:
    made = make(UNSTATED.format(words=words, seen=seen))
    assert ("prefix_len" not in made.findings) is known
    assert failing(made, "relations.alternatives", dtype="float64") == set()
