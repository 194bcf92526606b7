"""Modules that are given numbers for their scores by a parameter of their own, next to a mask of any kind."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

BODY = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None, {name}=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        bias, scale = {name}, q.shape[-1] ** -0.5
        s = q @ k.mT{early}
        if bias is not None:
            {check}
            s = s + {bias}
        s = s{late}
        if mask is not None:
            s = {masked}
        p = s.softmax(-1){after}
        return self.out((p @ v).transpose(1, 2).flatten(2))
"""
USUAL = {
    "name": "position_bias",
    "early": " * scale",
    "late": "",
    "bias": "bias",
    "check": "pass",
    "after": "",
    "masked": "s.masked_fill(~mask, -torch.inf)",
}
NUMBERS, OF_KEYS = "s + mask", "s.masked_fill(~mask[:, None, None], -torch.inf)"
NAMES = ("position_bias", "rel_pos_bias", "relative_position_bias", "score_bias", "attn_bias", "pair_scores")
CLAUSES = ("masks.*", "relations.alternatives")


def text(**changes: str) -> str:
    return BODY.format(**{**USUAL, **changes})


@pytest.mark.parametrize(
    ("name", "masked"),
    [(name, USUAL["masked"]) for name in NAMES] + [("position_bias", NUMBERS), ("rpb", NUMBERS), ("rel_bias", OF_KEYS)],
)
def test_numbers_with_a_parameter_of_their_own_are_judged_as_added(make: Make, name: str, masked: str) -> None:
    made = make(text(name=name, masked=masked))
    assert not made.findings
    assert Feature.FLOAT_MASK in made.claims
    assert "did you mean" not in made.about
    assert not failing(made, *CLAUSES, dtype="float64")


FORMS = {
    "one sample": {"check": "assert bias.shape == (1, *s.shape[1:])"},
    "heads": {"check": "assert bias.shape == s.shape[1:]"},
    "samples": {"check": "assert bias.shape == (len(s), *s.shape[2:])", "bias": "bias[:, None]"},
    "all axes": {"check": "assert bias.shape == s.shape"},
}


@pytest.mark.parametrize("masked", [USUAL["masked"], NUMBERS])
@pytest.mark.parametrize("form", FORMS)
def test_it_has_a_form_of_its_own(make: Make, form: str, masked: str) -> None:
    made = make(text(**FORMS[form], masked=masked))
    assert not made.findings
    assert not failing(made, *CLAUSES, dtype="float64")


WRONG = {
    "before the scale": {"early": "", "late": " * scale"},
    "after the softmax": {"bias": "0", "after": " + (0 if bias is None else bias)"},
    "transposed": {"bias": "bias.mT"},
    "of the next head": {"bias": "bias.roll(1, -3)"},
    "half": {"bias": "bias / 2"},
}


@pytest.mark.parametrize("masked", [USUAL["masked"], NUMBERS])
@pytest.mark.parametrize("case", WRONG)
def test_a_bias_that_is_not_added_as_it_is_fails(make: Make, case: str, masked: str) -> None:
    assert failing(make(text(masked=masked, **WRONG[case])), *CLAUSES, dtype="float64")


T5 = '''
class f(nn.Module):
    """The attention of T5, whose ``position_bias`` is that of the first layer; scores are not scaled.{said}"""
    def __init__(self, dim, heads, num_buckets=32, max_distance=128):
        super().__init__()
        self.h, self.num_buckets, self.max_distance = heads, num_buckets, max_distance
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(num_buckets, heads)

    def rows(self, ahead):
        count = self.num_buckets // 2
        far, exact = ahead.abs(), count // 2
        log = (far.clamp(min=1) / exact).log() / math.log(self.max_distance / exact) * (count - exact)
        return torch.where(far < exact, far, (exact + log.long()).clamp(max=count - 1)) + (ahead {later}) * count

    def forward(self, x, mask=None, key_value_states=None, position_bias=None):
        y = x if key_value_states is None else key_value_states
        q, k, v = (split(each, self.h) for each in (self.q(x), self.k(y), self.v(y)))
        s = q @ k.mT
        if {own} and key_value_states is None:
            place = torch.arange(x.shape[1])
            own = self.relative_attention_bias(self.rows(place - place[:, None])).permute(2, 0, 1)
            s = s + own
        if position_bias is not None:
            s = s + position_bias
        s = s if mask is None else s + mask
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
'''
IN_PLACE = "position_bias is None"


@pytest.mark.parametrize(
    ("own", "later", "wrong"), [(IN_PLACE, "> 0", False), (IN_PLACE, "< 0", True), ("True", "> 0", True)]
)
def test_a_bias_that_is_given_replaces_that_of_t5(make: Make, own: str, later: str, wrong: bool) -> None:
    made = make(T5.format(own=own, later=later, said=""))
    assert not made.findings
    assert bool(failing(made, "modules.as-built", *CLAUSES, dtype="float64")) is wrong


@pytest.mark.parametrize(("said", "wrong"), [("", False), ("\n    extra_bias: used instead of its own", True)])
def test_one_of_another_name_replaces_it_where_that_is_stated(make: Make, said: str, wrong: bool) -> None:
    made = make(T5.format(own="True", later="> 0", said=said).replace("position_bias", "extra_bias"))
    assert bool(failing(made, "modules.as-built", dtype="float64")) is wrong
