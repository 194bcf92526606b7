"""Masks of functions that their documentation states: another meaning than the published one, and masks of samples."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

NAMED = '''
def f(query, key, value, attn_mask=None{padding}):
    """{words}"""
    s = query @ key.mT * query.shape[-1] ** -0.5
    for mask in (attn_mask, {given}):
        if mask is not None:
            s = s.masked_fill(mask if mask is not attn_mask else {hidden}, -torch.inf)
    return s.softmax(-1) @ value
'''
PAIR = {
    "padding": ", key_padding_mask=None",
    "given": "None if key_padding_mask is None else key_padding_mask[:, None, None]",
}
ALONE = {"padding": "", "given": "None"}
STATED = "attn_mask: boolean, True where attention is not allowed."
HIDES, SHOWS = "mask", "~mask"
FOLDED = '''
def f(queries, keys, values, num_heads, mask=None):
    """queries (B, Tq, E), keys and values (B, Tk, E). mask: {words}, True where attention is not allowed."""
    q, k, v = (split(x, num_heads).flatten(0, 1) for x in (queries, keys, values))
    s = q @ k.mT * q.shape[-1] ** -0.5
    if mask is not None:
        mask = mask.{repeated} if mask.ndim == 3 else mask
        s = s.masked_fill(mask, -torch.inf)
    return (s.softmax(-1) @ v).unflatten(0, (-1, num_heads)).transpose(1, 2).flatten(2)
'''
EACH, IN_TURN = "repeat_interleave(num_heads, 0)", "repeat(num_heads, 1, 1)"


@pytest.mark.parametrize(
    ("form", "words", "hidden"),
    [(ALONE, STATED, HIDES), (PAIR, STATED, HIDES), (PAIR, "Attention.", HIDES), (PAIR, "Attention.", SHOWS)],
)
def test_the_meaning_that_is_stated_or_that_no_name_promises_is_no_mistake(
    make: Make, form: dict[str, str], words: str, hidden: str
) -> None:
    assert_conforms(make(NAMED.format(words=words, hidden=hidden, **form)))


@pytest.mark.parametrize(
    ("form", "words", "hidden"), [(ALONE, STATED, SHOWS), (PAIR, STATED, SHOWS), (ALONE, "Attention.", HIDES)]
)
def test_the_other_meaning_is(make: Make, form: dict[str, str], words: str, hidden: str) -> None:
    made = make(NAMED.format(words=words, hidden=hidden, **form))
    assert "masks.bool" in failing(made, "masks.*", dtype="float64")


@pytest.mark.parametrize(("words", "repeated"), [("(Tq, Tk) or (B, Tq, Tk)", EACH), ("(Tq, Tk)", IN_TURN)])
def test_masks_of_samples_in_the_order_of_the_heads(make: Make, words: str, repeated: str) -> None:
    assert_conforms(make(FOLDED.format(words=words, repeated=repeated)))


def test_masks_of_samples_in_another_order(make: Make) -> None:
    made = make(FOLDED.format(words="(Tq, Tk) or (B, Tq, Tk)", repeated=IN_TURN))
    assert "masks.bool" in failing(made, "masks.*", dtype="float64")
