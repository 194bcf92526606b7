"""Functions that take slopes of ALiBi, and have some by default as well."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

SLOPED = '''
def f(q, k, v, alibi_slopes=None, causal={causal}):
    """Attention with linear biases{words}"""
    heads, length, keys = q.shape[1], q.shape[2], k.shape[2]
    if alibi_slopes is None:
        alibi_slopes = {default}
    places = torch.arange(keys - length, keys, dtype={at})[:, None] - torch.arange(keys, dtype={at})
    s = (q @ k.mT) * q.shape[-1] ** -0.5 - alibi_slopes.to(q.dtype)[:, None, None] * places.abs().to(q.dtype)
    if causal:
        s = s.masked_fill(torch.ones(length, keys, dtype=torch.bool).triu(keys - length + 1), -torch.inf)
    return s.softmax(-1) @ v
'''
RATIO = "2.0 ** (-8.0 * torch.arange(1, heads + 1, dtype=torch.float64) / heads)"
RIGHT = {"words": " (ALiBi).", "default": RATIO, "at": "torch.float64", "causal": False}
TWINS = {
    "by default": {},
    "without a word": {"words": "."},
    "causal": {"causal": True},
    "of its own": {
        "words": ". alibi_slopes: (H,), by default 1 / (h + 1)",
        "default": "1 / torch.arange(1.0, heads + 1)",
    },
    "none": {"default": "q.new_zeros(heads)"},
}


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_slopes_by_default_are_no_mistake(make: Make, twin: dict[str, object]) -> None:
    made = make(SLOPED.format(**{**RIGHT, **twin}))
    assert not failing(made, "scores.*", "causal.*", "positions.*", dtype="float64")


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_mistakes_of_one_with_slopes_by_default(make: Make, dtype: str) -> None:
    made = make(SLOPED.format(**{**RIGHT, "at": "q.dtype"}))
    assert failing(made, "shapes.large", dtype=dtype)


SLIPS = {
    "another ratio by default": {"default": RATIO.replace("-8.0", "-4.0")},
    "not stated": {"words": ".", "default": RATIO.replace("-8.0", "-4.0")},
}


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
def test_other_slopes_than_those_stated_are_accused(make: Make, slip: dict[str, object]) -> None:
    assert failing(make(SLOPED.format(**{**RIGHT, **slip})), "scores.dot-product")
