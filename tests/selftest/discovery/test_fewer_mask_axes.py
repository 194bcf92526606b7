"""Masks of fewer than four axes, in functions that are given the number of heads, or document no other ones."""

import pytest

from attention_conformance.tests.selftest.discovery.making import Make, failing

HEADED = '''
def f(query, key, value, num_heads, attn_mask=None, key_padding_mask=None):
    """Attention of projected inputs.

    :param query: (B, L, E)
    :param key, value: (B, S, E)
    :param attn_mask: {words}
    :param key_padding_mask: (B, S) bool, True for padding, which gets no weight
    """
    batch, length, width = query.shape
    q, k, v = (split(x, num_heads).flatten(0, 1) for x in (query, key, value))
    s = q @ k.mT / (width // num_heads) ** 0.5
    if attn_mask is not None:
        assert attn_mask.ndim in {ranks}
        s = s.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype is torch.bool else s + attn_mask{slip}
    if key_padding_mask is not None:
        s = s.masked_fill(key_padding_mask.{repeated}[:, None], -torch.inf)
    return (s.softmax(-1) @ v).unflatten(0, (batch, num_heads)).transpose(1, 2).reshape(query.shape)
'''
WORDS = {
    "added": {"words": "(L, S) float mask, added to the scores of every head", "ranks": "(2,)"},
    "of pairs": {"words": "(L, S), bool (True: may attend) or float (added)", "ranks": "(2,)"},
    "of heads": {"words": "(L, S) or (B * num_heads, L, S), bool or float", "ranks": "(2, 3)"},
    "unstated": {"words": "a mask", "ranks": "(2, 3)"},
}
RIGHT = {"repeated": "repeat_interleave(num_heads, 0)", "slip": ""}
CLAUSES = ("masks.*",)


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_fewer_axes_are_no_mistake(make: Make, words: dict[str, str]) -> None:
    made = make(HEADED.format(**words, **RIGHT))
    assert "masks not claimed" not in made.about
    assert not failing(made, *CLAUSES, dtype="float64")


SLIPS = {
    "padding in the order of heads": {"repeated": "repeat(num_heads, 1)"},
    "added twice": {"slip": " * 2"},
}


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_mistakes_are_seen_through_fewer_axes(make: Make, words: dict[str, str], slip: dict[str, str]) -> None:
    assert failing(make(HEADED.format(**words, **{**RIGHT, **slip})), *CLAUSES, dtype="float64")


PLAIN = '''
def f(query, key, value, attn_mask=None):
    """Attention. attn_mask: {words}"""
    if attn_mask is not None and attn_mask.ndim > 2:
        attn_mask = attn_mask.view(query.shape[2], key.shape[2])
    return attend(query, key, value, attn_mask)[0]
'''


@pytest.mark.parametrize(
    ("words", "wrong"),
    [("(Lq, Lk), bool (True: may attend) or float", False), ("broadcastable to (B, H, Lq, Lk)", True)],
)
def test_a_published_name_promises_all_axes_but_where_two_are_documented(make: Make, words: str, wrong: bool) -> None:
    assert bool(failing(make(PLAIN.format(words=words)), *CLAUSES)) is wrong


OF_KEYS = '''
def f(query, key, value, attn_mask=None, is_causal={causal}):
    """Attention. {words}"""
    if attn_mask is not None:
        assert attn_mask.ndim == 2 and len(attn_mask) == len(query)
        attn_mask = attn_mask{slip}[:, None, None, :].expand(-1, 1, query.shape[2], -1)
    return attend(query, key, value, attn_mask, is_causal)[0]
'''
KEYS = "attn_mask: bool (B, L), True for real tokens."


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("words", "slip", "wrong"),
    [
        (KEYS, "", False),
        ("It has a mask.", "", False),
        (KEYS, ".flip(-1)", True),
    ],
)
def test_a_published_name_may_be_that_of_a_mask_of_keys(
    make: Make, causal: bool, words: str, slip: str, wrong: bool
) -> None:
    made = make(OF_KEYS.format(causal=causal, words=words, slip=slip))
    assert bool(failing(made, *CLAUSES, dtype="float64")) is wrong


FOUR_AXES = "Q, K, V: (batch, heads, length, width). "
RANKS = "mask: bool, True = visible, (Lq, Lk), (batch, Lq, Lk) or (batch, heads, Lq, Lk)."
BY_FRONT = """
    if mask is not None:
        {axes}
        s = s.masked_fill(~mask, -torch.inf)
    return s.softmax(-1) @ V
"""
OF_HEADS = "mask = mask[:, None] if mask.ndim == 3 else mask"
IN_FRONT = "mask = mask[(None,) * (4 - mask.ndim)]"


@pytest.mark.parametrize(
    ("words", "axes", "wrong"),
    [
        (FOUR_AXES + RANKS, OF_HEADS, False),
        (FOUR_AXES + RANKS, IN_FRONT, True),
        (RANKS, IN_FRONT, False),
        ("Q: (batch, length, width) or (batch, heads, length, width). " + RANKS, IN_FRONT, False),
        (FOUR_AXES + "mask: bool, True = visible, broadcast from (batch, Lq, Lk).", IN_FRONT, False),
    ],
)
def test_masks_of_samples_are_promised_where_queries_have_four_axes(
    make: Make, words: str, axes: str, wrong: bool
) -> None:
    text = f'\ndef f(Q, K, V, mask=None):\n    """{words}"""\n    s = Q @ K.mT / Q.shape[-1] ** 0.5'
    made = make(text + BY_FRONT.format(axes=axes))
    assert bool(failing(made, "relations.alternatives")) is wrong
