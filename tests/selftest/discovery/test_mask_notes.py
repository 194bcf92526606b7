"""Masks whose names promise nothing: what was seen is stated, and what is not judged leaves a verdict in part."""

import pytest

from attention_conformance.spec.conventions import EmptyRow, Polarity
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

MASKED = """
class f(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in "qkv")
    def forward(self, x, {name}=None, segment_mask=None):
        q, k, v = (split(each(x), self.h) for each in (self.q, self.k, self.v))
        s = q @ k.mT / q.shape[-1] ** 0.5
        if {name} is not None:
            s = s.masked_fill({hidden}, -1e9)
        return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)
"""


@pytest.mark.parametrize(
    ("name", "hidden", "meaning"),
    [
        ("padding_mask", "padding_mask[:, None, None]", Polarity.MASKED_OUT),
        ("src_mask", "src_mask[:, None, None] == 0", Polarity.MAY_ATTEND),
    ],
)
def test_the_meaning_of_true_is_stated(make: Make, name: str, hidden: str, meaning: Polarity) -> None:
    made = make(MASKED.format(name=name, hidden=hidden))
    assert Feature.KEY_PADDING in made.claims
    assert made.as_seen == (f"with True in {name!r} as {str(meaning).replace('-', ' ')}",)
    assert made.findings == {"segment_mask": "not judged: the suite knows no mask of that name"}
    assert_conforms(made)


def test_one_that_is_ignored_has_no_meaning(make: Make) -> None:
    made = make("def f(query, key, value, mask=None): return attend(query, key, value)[0]")
    assert Feature.BOOL_MASK in made.claims
    assert not made.as_seen
    assert not made.findings


def test_one_that_puts_zeros_in_the_place_of_queries_is_a_finding(make: Make) -> None:
    text = MASKED.format(name="mask", hidden="torch.zeros_like(s).bool()")
    made = make(text.replace(".flatten(2)", ".flatten(2) * (1 if mask is None else mask[..., None])"))
    assert Feature.KEY_PADDING not in made.claims
    assert made.findings["mask"] == "not judged: it takes one number for each token, (B, L), and changes queries alone"
    assert_conforms(made)


@pytest.mark.parametrize(
    ("hidden", "accused"), [("mask[:, None, :, None] == 0", True), ("mask[:, None, None] == 0", False)]
)
def test_one_of_padding_by_its_documentation_hides_keys(make: Make, hidden: str, accused: bool) -> None:
    text = MASKED.format(name="mask", hidden=hidden)
    documented = text.replace(
        "class f(nn.Module):", 'class f(nn.Module):\n    """mask: (B, L), 1 for tokens, 0 for padding."""'
    )
    made = make(documented)
    assert Feature.KEY_PADDING in made.claims
    assert bool(failing(made, "masks.key-padding", dtype="float64")) is accused


@pytest.mark.parametrize(
    "changed", ["s - mask[:, None, None]", "s - mask[:, None]", "s + mask.roll(1, 0)[:, None, None]"]
)
def test_numbers_that_are_not_added_as_they_should_be_are_accused(make: Make, changed: str) -> None:
    text = MASKED.format(name="mask", hidden="").replace("s.masked_fill(, -1e9)", changed)
    with pytest.raises((AssertionError, ValueError), match=r"elements differ|has no cotangent|finite"):
        assert_conforms(make(text))


def test_a_mask_of_keys_that_is_added_is_judged(make: Make) -> None:
    text = MASKED.format(name="mask", hidden="").replace("s.masked_fill(, -1e9)", "s + mask[:, None, None]")
    made = make(text)
    assert Feature.KEY_PADDING in made.claims
    assert "its 'mask' mask is one of keys, given as 0 and -inf" in made.about
    assert_conforms(made)


def test_one_that_raises_is_a_finding(make: Make) -> None:
    text = "def f(query, key, value, mask=None):\n    assert mask is None\n    return attend(query, key, value)[0]"
    assert make(text).findings == {"mask": "not judged: it raises AssertionError"}


@pytest.mark.parametrize(
    ("words", "contradicted"),
    [("1 = valid", True), ("True for the keys that are ignored", False), ("shown as 1, or 0", False)],
)
def test_documentation_that_states_the_other_meaning_is_a_finding(make: Make, words: str, contradicted: bool) -> None:
    text = MASKED.format(name="mask", hidden="mask[:, None, None]")
    made = make(
        text.replace("class f(nn.Module):", f'class f(nn.Module):\n    """Args:\n        mask: (B, Lk), {words}."""')
    )
    why = "judged as it behaves: True hides a key, and by its documentation shows a key"
    assert made.findings.get("mask", "") == (why if contradicted else "")


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("key_mask", "key_mask.roll(1, -1)[:, None, None]"),
        ("key_mask", "key_mask.flip(0)[:, None, None]"),
        ("mask", "mask.flip(0)[:, None, None]"),
        ("pad_mask", "pad_mask[:, None, :, None]"),
    ],
)
def test_one_that_is_that_of_other_keys_is_accused(make: Make, name: str, hidden: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=r"elements differ|has no cotangent"):
        assert_conforms(make(MASKED.format(name=name, hidden=hidden)))


def test_a_mask_of_numbers_that_are_taken_for_booleans_is_not_added(make: Make) -> None:
    made = make(
        "def f(query, key, value, mask=None):\n"
        "    s = query @ np.swapaxes(key, -1, -2) / query.shape[-1] ** 0.5\n"
        "    s = s if mask is None else np.where(mask, -1e9, s)\n"
        "    e = np.exp(s - s.max(-1, keepdims=True))\n"
        "    return e / e.sum(-1, keepdims=True) @ value\n"
    )
    assert "any number in its 'mask' but 0 hides a key" in made.about
    assert not made.findings
    assert_conforms(made)


def test_a_mask_of_which_it_matters_alone_that_it_is_given_is_a_flag(make: Make) -> None:
    text = MASKED.replace("s.masked_fill({hidden}, -1e9)", "s.masked_fill(torch.ones_like(s).triu(1).bool(), -1e9)")
    made = make(text.format(name="mask"))
    assert made.findings["mask"] == "not judged: it acts like no mask that the suite knows"
    assert "only whether one is given matters" in made.about
    assert_conforms(made)


ROWS = '''
def f(query, key, value, attn_mask=None):
    """{text}"""
    s = (query @ key.mT / query.shape[-1] ** 0.5).masked_fill(~attn_mask, {hidden}) if attn_mask is not None else None
    return attend(query, key, value)[0] if s is None else {answer}
'''


@pytest.mark.parametrize(
    ("text", "hidden", "answer", "contradicted"),
    [
        ("Zeros for queries without any key.", "-1e30", "s.softmax(-1) @ value", True),
        ("Fully masked rows give zeros, not NaN.", "-torch.inf", "s.softmax(-1).nan_to_num(0.0) @ value", False),
        ("A row with no keys gets the mean of all values.", "-1e30", "s.softmax(-1) @ value", False),
        ("Fully masked rows do not give zeros.", "-1e30", "s.softmax(-1) @ value", False),
        ("Avoids NaN for fully masked rows.", "-1e30", "s.softmax(-1) @ value", False),
    ],
)
def test_rows_without_keys_that_are_not_as_documented_are_stated(
    make: Make, text: str, hidden: str, answer: str, contradicted: bool
) -> None:
    made = make(ROWS.format(text=text, hidden=hidden, answer=answer))
    assert made.claims.conventions.empty_row_bool is (EmptyRow.ZEROS if "inf" in hidden else EmptyRow.UNIFORM)
    found = "judged as it behaves: they get uniform, and by its documentation zeros"
    assert made.findings == ({"rows without keys": found} if contradicted else {})
