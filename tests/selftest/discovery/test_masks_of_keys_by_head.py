"""Masks of keys, in functions that take samples and heads in one axis, or one head at a time."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

CLAUSES = ("masks.key-padding*",)
BODIES = {
    "NumPy, (B, L, d)": """
def f(query, key, value, {name}=None):
    s = np.einsum("bld,bsd->bls", query, key) / np.sqrt(query.shape[-1])
    if {name} is not None:
        s = np.where({name}{slip}[:, None, :], -np.inf, s)
    w = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bls,bsd->bld", w / w.sum(-1, keepdims=True), value)
""",
    "torch, (B, L, d)": """
def f(query, key, value, {name}=None):
    s = torch.einsum("bld,bsd->bls", query, key) / query.shape[-1] ** 0.5
    if {name} is not None:
        s = s.masked_fill({name}{slip}[:, None, :], -torch.inf)
    return torch.einsum("bls,bsd->bld", s.softmax(-1), value)
""",
    "NumPy, (L, d)": """
def f(query, key, value, {name}=None):
    length, width = query.shape
    s = query @ key.T / np.sqrt(width)
    if {name} is not None:
        assert {name}.ndim == 1
        s = np.where({name}{slip}, -np.inf, s)
    w = np.exp(s - s.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True) @ value
""",
}
BACKWARDS = {body: ".flip(-1)" if "torch" in body else "[..., ::-1]" for body in BODIES}


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("body", BODIES)
def test_a_mask_of_keys_is_that_of_each_head(make: Make, body: str, wrong: bool) -> None:
    made = make(BODIES[body].format(name="key_padding_mask", slip=BACKWARDS[body] if wrong else ""))
    assert bool(failing(made, *CLAUSES, dtype="float64")) is wrong


REPEATING = '''
def f(query, key, value, num_heads, attn_mask=None, key_padding_mask=None):
    """q, k, v: (B * num_heads, L, d). key_padding_mask: (B, L), True for tokens."""
    rows, length, width = query.shape
    s = query @ key.mT / width**0.5
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype is torch.bool else s + attn_mask
    if key_padding_mask is not None:
        s = s.masked_fill(~key_padding_mask.{repeated}[:, None, :], -torch.inf)
    return s.softmax(-1) @ value
'''


@pytest.mark.parametrize(
    ("repeated", "wrong"), [("repeat_interleave(num_heads, 0)", False), ("repeat(num_heads, 1)", True)]
)
def test_what_repeats_its_mask_itself_is_given_one_of_samples(make: Make, repeated: str, wrong: bool) -> None:
    assert bool(failing(make(REPEATING.format(repeated=repeated)), *CLAUSES, dtype="float64")) is wrong
