"""Masks whose names the suite does not list: what is one of keys by its words is judged by what it does."""

import pytest

from attention_conformance.spec.conventions import EmptyRow, Polarity
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

CROSS = """
class f(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in "qkv")
    def forward(self, x, memory, {name}=None):
        q, k, v = (split(f(t), self.h) for f, t in ((self.q, x), (self.k, memory), (self.v, memory)))
        s = q @ k.mT / q.shape[-1] ** 0.5
        if {name} is not None:
            s = s.masked_fill({hidden}, -1e9)
        return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)
"""
FUNCTION = """
def f(query, key, value, {parameters}):
    s = query @ key.mT / query.shape[-1] ** 0.5
    return (s if {name} is None else {masked}).softmax(-1) @ value
"""


def function(name: str, masked: str, parameters: str = "") -> str:
    return FUNCTION.format(name=name, masked=masked, parameters=parameters or f"{name}=None")


@pytest.mark.parametrize("name", ["memory_mask", "memory_token_mask", "encoder_padding_mask", "context_valid_mask"])
def test_one_of_another_sequence_is_judged(make: Make, name: str) -> None:
    made = make(CROSS.format(name=name, hidden=f"~{name}[:, None, None]"))
    assert Feature.KEY_PADDING in made.claims
    assert made.claims.conventions.bool_mask is Polarity.MAY_ATTEND
    assert not made.findings
    assert_conforms(made)


def test_one_that_is_added_is_judged(make: Make) -> None:
    made = make(function("causal_mask", "s + causal_mask"))
    assert Feature.FLOAT_MASK in made.claims
    assert_conforms(made)


def test_one_that_is_next_to_one_of_queries_is_judged(make: Make) -> None:
    masked = "s.masked_fill(~k_mask[:, None, None], -torch.inf)"
    made = make(function("k_mask", masked, "q_mask=None, k_mask=None"))
    assert Feature.KEY_PADDING in made.claims
    assert made.findings == {"q_mask": "not judged: the suite knows no mask of that name"}
    assert_conforms(made)


@pytest.mark.parametrize("parameters", ["head_mask=None", "use_mask=False", "causal_mask=False"])
def test_another_thing_is_none(make: Make, parameters: str) -> None:
    made = make(function("None", "s", parameters))
    assert not made.claims.features & {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.KEY_PADDING}


@pytest.mark.parametrize("hidden", ["memory_mask[:, None, :, None]", "memory_mask.roll(1, -1)[:, None, None]"])
def test_one_that_hides_others_in_the_place_of_keys_is_accused(make: Make, hidden: str) -> None:
    with pytest.raises((AssertionError, RuntimeError), match=r"elements differ|must match the size"):
        assert_conforms(make(CROSS.format(name="memory_mask", hidden=hidden)))


@pytest.mark.parametrize("name", ["k_mask", "key_mask"])
def test_one_of_keys_by_its_name_that_changes_queries_alone_is_accused(make: Make, name: str) -> None:
    made = make(function(name, f"s.masked_fill({name}[:, None, :, None], -torch.inf)"))
    assert Feature.KEY_PADDING in made.claims
    assert f"its {name!r} mask is one of keys, and changes queries alone" in made.about
    with pytest.raises((AssertionError, RuntimeError), match=r"expected .* \(NaN\)|must match the size"):
        assert_conforms(made)


def test_one_that_is_ignored_is_accused(make: Make) -> None:
    made = make(function("kv_valid_mask", "s"))
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(made)


TILED = """
def f(q, k, v, kv_mask=None, block=64):
    m, total = q.new_full((*q.shape[:3], 1), -torch.inf), 0.0
    y = torch.zeros_like(q[..., :1] * v[..., :1, :])
    for at in range(0, k.shape[2], block):
        s = q @ k[:, :, at : at + block].mT * q.shape[-1] ** -0.5
        if kv_mask is not None:
            s = s.masked_fill(~kv_mask[..., None, at : at + block], -torch.inf)
        before, m = m, torch.maximum(m, s.amax(-1, keepdim=True))
        {rescued}
        p, again = (s - safe).exp(), (before - safe).exp()
        total, y = total * again + p.sum(-1, keepdim=True), y * again + p @ v[:, :, at : at + block]
    return y / total, (m + total.log())[..., 0]
"""


@pytest.mark.parametrize(("rescued", "wrong"), [("safe = m.clamp(min=-1e30)", False), ("safe = m", True)])
def test_one_of_keys_with_an_axis_of_heads_hides_whole_tiles(make: Make, rescued: str, wrong: bool) -> None:
    made = make(TILED.format(rescued=rescued))
    assert Feature.KEY_PADDING in made.claims
    assert not made.findings
    (found,) = run(made, ("masks.key-padding",), ("float32",))
    assert (found.status is Status.FAIL) is wrong
    (logs,) = run(made, ("returned.empty-row",), ("float32",))
    assert logs.status is Status.PASS
    assert ("is nan" in made.about) is wrong


NEXT_TO = '''
def f(q, k, v, token_mask=None, attn_mask=None):
    """{text}"""
    s = q @ k.mT * q.shape[-1] ** -0.5
    if attn_mask is not None:
        s = s.masked_fill(~attn_mask, -torch.inf)
    if token_mask is not None:
        s = s.masked_fill({hidden}, -torch.inf)
    return s.softmax(-1) @ v
'''
STATED = "token_mask: bool (B, M), True = valid. attn_mask: bool (N, M) or (B, H, N, M), True = visible."


@pytest.mark.parametrize(
    ("hidden", "text", "judged", "wrong"),
    [
        ("~token_mask[:, None, None]", "", True, False),
        ("token_mask[:, None, None]", "", True, False),
        ("~token_mask[:, None, None]", STATED, True, False),
        ("~token_mask.flip(1)[:, None, None]", STATED, True, True),
        ("~token_mask.flip(1)[:, None, None]", "", False, False),
        ("token_mask[:, None, None]", STATED.replace("(B, M)", "(B, N)"), True, False),
    ],
)
def test_one_of_keys_next_to_one_of_pairs(make: Make, hidden: str, text: str, judged: bool, wrong: bool) -> None:
    made = make(NEXT_TO.format(text=text, hidden=hidden))
    assert (Feature.KEY_PADDING in made.claims) is judged
    assert Feature.BOOL_MASK in made.claims
    assert ("token_mask" in made.findings) is not judged
    assert bool(failing(made, "masks.bool", *(["masks.key-padding"] if judged else []))) is wrong


def test_rows_that_one_of_keys_empties_get_what_is_seen(make: Make) -> None:
    text = NEXT_TO.replace("attn_mask", "mask").replace("-torch.inf", "-1e30")
    made = make(text.format(text="", hidden="~token_mask[:, None, None]"))
    assert made.claims.conventions.empty_row_padding is EmptyRow.UNIFORM
    assert not failing(made, "masks.empty-row-padding", "gradients.empty-row")


PAIRS = """
class f(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in "qkv")
    def forward(self, queries, elements, element_mask=None, pair_mask=None):
        q, k, v = (split(f(t), self.h) for f, t in ((self.q, queries), (self.k, elements), (self.v, elements)))
        s = q @ k.mT / q.shape[-1] ** 0.5
        if element_mask is not None:
            s = s.masked_fill(~element_mask[:, None, None], -torch.inf)
        if pair_mask is not None:
            s = {paired}
        return (s.softmax(-1) @ v).transpose(1, 2).flatten(2)
"""


@pytest.mark.parametrize(
    ("paired", "wrong"),
    [
        ("s.masked_fill(~pair_mask[:, None], -torch.inf)", False),
        ("(q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~pair_mask[:, None], -torch.inf)", True),  # it forgets the other
    ],
)
def test_a_module_with_one_of_elements_and_one_of_pairs(make: Make, paired: str, wrong: bool) -> None:
    made = make(PAIRS.format(paired=paired))
    assert {Feature.KEY_PADDING, Feature.BOOL_MASK} <= made.claims.features
    assert not made.findings
    assert not failing(made, "masks.bool", "masks.key-padding")
    assert bool(failing(made, "masks.intersect")) is wrong


LISTED = """
from typing import List, Optional
def f(q, k, v, biases: {annotation} = None):
    s = q @ k.mT * q.shape[-1] ** -0.5
    for each in {read}:
        s = s + each
    return s.softmax(-1) @ v
class g(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h = num_heads
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in "qkv")
    def forward(self, x, y, biases: {annotation} = None):
        q, k, v = (split(f(t), self.h) for f, t in ((self.q, x), (self.k, y), (self.v, y)))
        return f(q, k, v, biases).transpose(1, 2).flatten(2)
"""


@pytest.mark.parametrize("name", ["f", "g"])
@pytest.mark.parametrize(
    ("read", "wrong"), [("biases or []", False), ("(biases or [])[:1]", True), ("[2 * b for b in biases or []]", True)]
)
def test_a_list_of_biases_is_judged_as_their_sum(make: Make, name: str, read: str, wrong: bool) -> None:
    made = make(LISTED.format(annotation="Optional[List[torch.Tensor]]", read=read), name)
    assert Feature.FLOAT_MASK in made.claims
    assert not made.findings
    assert bool(failing(made, "masks.float", "gradients.mask")) is wrong


def test_biases_that_state_no_list_are_given_none(make: Make) -> None:
    assert Feature.FLOAT_MASK not in make(LISTED.format(annotation="object", read="biases or []")).claims
