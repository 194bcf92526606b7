"""Masks of classes without parameters: no published name states what True means there, and it is seen."""

import pytest

from attention_conformance.spec.conventions import Polarity
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

ATTENTION = """
class f(nn.Module):
    def __init__(self, drop=0.0):
        super().__init__()
        self.drop = nn.Dropout(drop)

    def forward(self, q, k, v, {inputs}):
        "Arrays are (B, H, L, d)."
        s = q @ k.mT / q.shape[-1] ** 0.5
        later = torch.ones(s.shape[-2:], dtype=torch.bool).triu(1)
        {masked}
        return self.drop(s.softmax(-1)) @ v
"""
HELD = """
class Hidden:
    def __init__(self, mask):
        self.mask = mask
"""
IN_ITS_PLACE = "s = s.masked_fill({own}later if attn_mask is None else {own}attn_mask, -torch.inf)"
PLAIN = "s = s if attn_mask is None else s.masked_fill({own}attn_mask, -torch.inf)"


@pytest.mark.parametrize("masked", [IN_ITS_PLACE.format(own=""), PLAIN.format(own=""), PLAIN.format(own="~")])
def test_what_true_means_in_a_mask_of_a_class_is_seen(make: Make, masked: str) -> None:
    made = make(ATTENTION.format(inputs="attn_mask=None", masked=masked))
    hides = "~" not in masked
    assert made.claims.conventions.bool_mask is (Polarity.MASKED_OUT if hides else Polarity.MAY_ATTEND)
    assert made.as_seen == (f"with True in 'attn_mask' as {'masked out' if hides else 'may attend'}",)
    assert_conforms(made)


@pytest.mark.parametrize(
    ("masked", "clause"),
    [
        ("hidden.roll(1, -1)", "causal.with-mask"),
        ("hidden.transpose(-1, -2)", "causal.with-mask"),
        ("hidden & later", "causal.with-mask"),
    ],
    ids=["another key", "transposed", "where it is later alone"],
)
def test_a_mask_that_hides_other_keys_is_wrong_whatever_true_means(make: Make, masked: str, clause: str) -> None:
    before = "hidden = later if attn_mask is None else attn_mask"
    hides = f"{before}; s = s.masked_fill(hidden if attn_mask is None else {masked}, -torch.inf)"
    made = make(ATTENTION.format(inputs="attn_mask=None", masked=hides))
    assert failing(made, "masks.bool", clause, dtype="float64")


def test_the_flag_of_torch_next_to_the_mask_promises_its_meaning(make: Make) -> None:
    masked = f"s = s.masked_fill(later, -torch.inf) if is_causal else s; {PLAIN.format(own='')}"
    text = ATTENTION.format(inputs="attn_mask=None, is_causal=False", masked="{masked}")
    made = make(text.format(masked=masked.replace("; ", "\n        ")))
    assert made.claims.conventions.bool_mask is Polarity.MAY_ATTEND
    assert failing(made, "masks.bool") == {"masks.bool"}


@pytest.mark.parametrize(("slip", "wrong"), [("", set()), (".roll(1, -1)", {"causal.with-mask"})])
def test_a_mask_that_is_read_from_an_object_is_given_in_one(make: Make, slip: str, wrong: set[str]) -> None:
    text = ATTENTION.format(
        inputs="attn_mask",
        masked="given, attn_mask = attn_mask is not None, Hidden(later) if attn_mask is None else attn_mask\n"
        f"        s.masked_fill_(attn_mask.mask{slip} if given else attn_mask.mask, -torch.inf)",
    )
    made = make(HELD + text)
    assert "its 'attn_mask' is read as .mask" in made.stated
    assert slip or made.as_seen == ("with True in 'attn_mask' as masked out",)
    assert failing(made, "causal.with-mask", "masks.bool", dtype="float64") >= wrong


@pytest.mark.parametrize("held", ["", ".mask"])
@pytest.mark.parametrize(
    ("change", "wrong"), [("", set()), (".logical_or_(attn_mask{}.roll(1, -1))", {"effects.inputs"})]
)
def test_a_mask_of_a_class_is_not_written_to(make: Make, held: str, change: str, wrong: set[str]) -> None:
    used = f"s.masked_fill(attn_mask{held}, -torch.inf)"
    masked = f"s = s if attn_mask is None else {used}; attn_mask is None or attn_mask{held}{change.format(held)}"
    made = make(ATTENTION.format(inputs="attn_mask=None", masked=masked))
    assert failing(made, "effects.inputs") == wrong
