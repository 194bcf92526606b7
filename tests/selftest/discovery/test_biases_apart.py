"""Functions that take added numbers by one parameter, and masks of another form by a second one."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

APART = """
def f(query, key, value, {bias}=None, mask=None):
    groups = query.shape[1] // key.shape[1]
    q = query.unflatten(1, (key.shape[1], groups))
    s = q @ key[:, :, None].mT * query.shape[-1] ** -0.5
    if {bias} is not None:
        {check}
        s = s + ({added})
    if mask is not None:
        mask = mask[:, None] if mask.ndim == 2 else mask
        s = s.masked_fill(~mask[:, None, None], -torch.inf)
    return (s.softmax(-1) @ value[:, :, None]).flatten(1, 2)
"""
GROUPED = "assert {bias}.ndim == 4 and {bias}.shape[2:] == s.shape[3:]"
OF_HEADS = "assert {bias}.shape == (query.shape[1], *s.shape[3:])"
SPLIT, IN_TURN = "(key.shape[1], groups)", "(groups, key.shape[1])"
RIGHT = {
    "all axes": (GROUPED, f"{{bias}}.expand(-1, groups * key.shape[1], -1, -1).unflatten(1, {SPLIT})"),
    "heads": (OF_HEADS, f"{{bias}}.unflatten(0, {SPLIT})"),
    "one head by its axis": (
        "pass",
        "{bias}.unsqueeze(2) if {bias}.shape[1] == 1 else"
        " {bias}.expand(len(q), groups * key.shape[1], query.shape[2], key.shape[2])"
        f".unflatten(1, {SPLIT})",
    ),
    "any axes": (
        "pass",
        f"{{bias}}.expand(len(q), groups * key.shape[1], query.shape[2], key.shape[2]).unflatten(1, {SPLIT})",
    ),
}
WRONG = {
    "heads in turn": (GROUPED, f"{{bias}}.unflatten(1, {IN_TURN}).transpose(1, 2)", "grouped.masks"),
    "heads alone in turn": (OF_HEADS, f"{{bias}}.unflatten(0, {IN_TURN}).transpose(0, 1)", "grouped.masks"),
    "half": (GROUPED, f"{{bias}}.unflatten(1, {SPLIT}) / 2", "masks.float"),
    "half of heads": (OF_HEADS, f"{{bias}}.unflatten(0, {SPLIT}) / 2", "masks.float"),
}
CLAUSES = ("masks.*", "grouped.masks")


def text(name: str, check: str, added: str) -> str:
    return APART.format(bias=name, check=check.format(bias=name), added=added.format(bias=name))


@pytest.mark.parametrize("name", ["bias", "attn_bias"])
@pytest.mark.parametrize("form", RIGHT.values(), ids=RIGHT)
def test_a_bias_has_a_form_of_its_own(make: Make, name: str, form: tuple[str, str]) -> None:
    made = make(text(name, *form))
    assert ("is given as" in made.about) is (form is not RIGHT["any axes"])
    assert {Feature.FLOAT_MASK, Feature.BOOL_MASK} <= made.claims.features
    assert not failing(made, *CLAUSES, dtype="float64")


@pytest.mark.parametrize("name", ["bias", "attn_bias"])
@pytest.mark.parametrize(("check", "added", "clause"), WRONG.values(), ids=WRONG)
def test_mistakes_are_seen_through_that_form(make: Make, name: str, check: str, added: str, clause: str) -> None:
    assert clause in failing(make(text(name, check, added)), *CLAUSES, dtype="float64")


ONE_HEAD = """
def f(query, key, value, bias=None, mask=None):
    q = query.unflatten(1, (key.shape[1], -1))
    s = q @ key[:, :, None].mT * query.shape[-1] ** -0.5
    if bias is not None:
        assert bias.ndim == 4 and bias.shape[2:] == s.shape[3:]
        s = s + bias[:, :, None]{slip}
    if mask is not None:
        s = s.masked_fill(~mask[:, None, None], -torch.inf)
    return (s.softmax(-1) @ value[:, :, None]).flatten(1, 2)
"""


@pytest.mark.parametrize(("slip", "wrong"), [("", False), (" * 2", True)])
def test_where_heads_share_keys_a_bias_may_be_the_same_for_all(make: Make, slip: str, wrong: bool) -> None:
    assert bool(failing(make(ONE_HEAD.format(slip=slip)), *CLAUSES, dtype="float64")) is wrong


PUBLISHED = """
def f(query, key, value, attn_mask=None, bias=None):
    s = query @ key.mT * query.shape[-1] ** -0.5
    if bias is not None:
        assert bias.shape == s.shape[1:]
        s = s + bias{slip}
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -torch.inf)
    return s.softmax(-1) @ value
"""


@pytest.mark.parametrize(("slip", "wrong"), [("", False), (".flip(0)", True)])
def test_a_bias_next_to_a_published_mask_has_one_too(make: Make, slip: str, wrong: bool) -> None:
    made = make(PUBLISHED.format(slip=slip))
    assert Feature.FLOAT_MASK in made.claims
    assert bool(failing(made, *CLAUSES, dtype="float64")) is wrong


UNNAMED = '''
def f(q, k, v, mask=None, {name}=None):
    """mask: boolean, True = may attend."""
    s = (q @ k.mT{early}) if {name} is None else (q @ k.mT{early} + {name}{axes})
    s = s{late}
    if mask is not None:
        s = s.masked_fill(~mask, -torch.inf)
    return s.softmax(-1) @ v
'''
SCALE = " * q.shape[-1] ** -0.5"


@pytest.mark.parametrize(("name", "axes"), [("rel_bias", "[None]"), ("position_scores", "")])
@pytest.mark.parametrize(("early", "late", "wrong"), [(SCALE, "", False), ("", SCALE, True)])
def test_numbers_of_any_name_are_known_by_their_effect(
    make: Make, name: str, axes: str, early: str, late: str, wrong: bool
) -> None:
    made = make(UNNAMED.format(name=name, axes=axes, early=early, late=late))
    assert Feature.FLOAT_MASK in made.claims
    assert name not in made.findings
    assert bool(failing(made, "masks.float", dtype="float64")) is wrong


AFTER = """
def f(query, key, value, mask=None, {bias}=None):
    s = query @ key.mT * query.shape[-1] ** -0.5
    if {bias} is not None:
        s = s + {bias}
    {scores}
    w = s.softmax(-1)
    {weights}
    return w @ value
"""
LEFT_OUT = "w = w if mask is None else torch.where(mask, w, 0.0)"
SUMMED_AGAIN = f"{LEFT_OUT}; w = w / w.sum(-1, keepdim=True)"
AT_ZERO = "s = s if mask is None else s.masked_fill(~mask, 0.0)"


@pytest.mark.parametrize("bias", ["bias", "attn_bias"])
@pytest.mark.parametrize(
    ("scores", "weights", "wrong"), [("", SUMMED_AGAIN, False), ("", LEFT_OUT, True), (AT_ZERO, "", True)]
)
def test_a_mask_next_to_a_bias_is_judged_whatever_it_does(
    make: Make, bias: str, scores: str, weights: str, wrong: bool
) -> None:
    made = make(AFTER.format(bias=bias, scores=scores, weights=weights))
    assert {Feature.FLOAT_MASK, Feature.BOOL_MASK} <= made.claims.features
    assert bool(failing(made, "masks.bool", dtype="float64")) is wrong


NEXT_TO_NUMBERS = """
def f(q, k, v, mask=None, {name}=None):
    b = {name}
    s = q @ k.mT{early}
    if {name} is not None:
        {check}
        s = s + {added}
    s = s{late}
    if mask is not None:
        s = s + mask
    return (s.softmax(-1){after}) @ v
"""
ADDED = {"name": "rel_bias", "early": SCALE, "late": "", "check": "pass", "added": "b", "after": ""}
BESIDE = {
    "any axes": ({}, False),
    "under a known name's like": ({"name": "position_bias"}, False),
    "under a name that states nothing": ({"name": "extra"}, False),
    "of heads": ({"check": "assert b.shape == s.shape[1:]"}, False),
    "of samples": ({"check": "assert b.shape == (len(s), *s.shape[2:])", "added": "b[:, None]"}, False),
    "before the scale": ({"early": "", "late": SCALE}, True),
    "before the scale, of heads": ({"check": "assert b.shape == s.shape[1:]", "early": "", "late": SCALE}, True),
    "transposed": ({"added": "b.mT"}, True),
    "after the softmax": ({"added": "0", "after": " + (0 if b is None else b)"}, True),
    "of another head": ({"check": "assert b.shape == s.shape[1:]", "added": "b.roll(1, 0)"}, True),
}


@pytest.mark.parametrize("case", BESIDE)
def test_numbers_next_to_a_mask_that_takes_some_are_judged_as_well(make: Make, case: str) -> None:
    changes, wrong = BESIDE[case]
    made = make(NEXT_TO_NUMBERS.format(**{**ADDED, **changes}))
    assert not made.findings
    assert "did you mean" not in made.about
    assert bool(failing(made, "relations.alternatives", "masks.*", dtype="float64")) is wrong
