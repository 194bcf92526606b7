"""Masks of modules with an optional context: one that is left out there by text or code is of self-attention alone."""

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

BODY = '''
class f(nn.Module):
    """{said}"""
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.q, self.kv, self.out = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def attended(self, q, k, v, hidden):
        return self.out(attend(q, k, v, hidden)[0].transpose(1, 2).flatten(2))

    def forward(self, x, context=None, {name}=None):
        alone = context is None
        source = x if alone else context
        k, v = (split(each, self.h) for each in self.kv(source).chunk(2, -1))
        q = split(self.q(x), self.h)
        {first}
        return self.attended(q, k, v, {given})
'''
USUAL = {"said": "", "name": "mask", "first": "pass", "given": "mask if alone else None"}
CLAUSES = ("masks.float", "masks.bool", "masks.key-padding", "cross-attention.shared-inputs")


def text(**changes: str) -> str:
    return BODY.format(**{**USUAL, **changes})


def is_stated(made: Implementation) -> bool:
    return any("self-attention alone" in each for each in made.stated)


CONDITIONS = {
    "on one side": {},
    "by its own condition": {"given": "None if mask is None or context is not None else mask"},
    "emptied": {"first": "mask = None if context is not None else mask", "given": "mask"},
    "by an early end": {
        "first": "if source is not x: return self.attended(q, k, v, None)",
        "given": "mask",
    },
    "of keys": {"given": "mask[:, None, None] if alone and mask is not None else None"},
    "refused": {"first": "assert alone or mask is None, 'a context has no mask'", "given": "mask"},
}


@pytest.mark.parametrize("case", CONDITIONS)
def test_a_mask_that_is_left_out_next_to_a_context_is_of_self_attention_alone(make: Make, case: str) -> None:
    made = make(text(**CONDITIONS[case]))
    assert is_stated(made)
    assert not made.findings
    assert (
        {Feature.KEY_PADDING} if case == "of keys" else {Feature.BOOL_MASK, Feature.FLOAT_MASK}
    ) <= made.claims.features
    assert Feature.CROSS in made.claims
    assert not failing(made, *CLAUSES, dtype="float64")


WRITTEN = [
    "mask: added, the causal mask of the decoder",
    "context switches to cross attention. ``mask`` is the additive (T, T) mask of later tokens.",
    "mask: (B, 1, L, L), True = seen",
    "mask hides keys in self-attention only",
    "mask: (B, 1, Lq, Lk), not used with a context",
]


@pytest.mark.parametrize("said", WRITTEN)
def test_text_leaves_a_mask_out_whatever_the_code_looks_at(make: Make, said: str) -> None:
    made = make(text(said=said, first="same = torch.equal(source, x)", given="mask if same else None"))
    assert any(each.endswith("by its documentation") for each in made.stated)
    assert not made.findings
    assert not failing(made, *CLAUSES, dtype="float64")


PROMISED = {
    "by its name": {"name": "context_mask", "given": "context_mask if alone else None"},
    "of keys by its name": {
        "name": "key_mask",
        "given": "key_mask[:, None, None] if alone and key_mask is not None else None",
    },
    "by its shape": {"said": "mask: (B, 1, Lq, Lk), True = may be seen"},
    "by the tokens of the context": {
        "said": "x: (B, N, E)\n    context: (B, M, E)\n    mask: (B, M), True = may be seen",
        "given": "mask[:, None, None] if alone and mask is not None else None",
    },
    "by words": {"said": "mask: True = may be seen, in cross-attention as in self-attention"},
    "for both": {"said": "mask: True = may be seen, whether or not there is a context"},
    "by nothing but its name": {"first": "same = torch.equal(source, x)", "given": "mask if same else None"},
}


@pytest.mark.parametrize("case", PROMISED)
def test_a_mask_that_is_promised_for_a_context_as_well_is_not_left_out(make: Make, case: str) -> None:
    made = make(text(**PROMISED[case]))
    assert not is_stated(made)
    assert failing(made, *CLAUSES, dtype="float64")


WRONG = {
    "of other tokens": {"given": "mask.mT if alone and mask is not None else None"},
    "after one that is ignored": {"given": "mask * 2 if alone and mask is not None else None", "said": "mask: added"},
}


@pytest.mark.parametrize("case", WRONG)
def test_one_that_is_wrong_in_self_attention_fails(make: Make, case: str) -> None:
    made = make(text(**WRONG[case]))
    assert "masks.float" in failing(made, *CLAUSES, dtype="float64")


def test_a_mask_that_is_read_next_to_a_context_is_judged_there(make: Make) -> None:
    made = make(text(given="mask", said="mask: of self-attention, or of queries and context"))
    assert not is_stated(made)
    assert not failing(made, *CLAUSES, dtype="float64")
