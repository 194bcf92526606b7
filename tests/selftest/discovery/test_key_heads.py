"""One head of key and value for all heads of the query, in modules and functions: judged as they are."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms

MODULE = """
class f(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h, self.d = num_heads, d_model // num_heads
        self.q_emb, self.out = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model, bias=False)
        {keys}
    def forward(self, x):
        q = split(self.q_emb(x), self.h)
        k, v = ({split})
        s = q @ k[:, None].mT * {scale}
        return self.out((s.softmax(-1) @ v[:, None]).transpose(1, 2).flatten(2))
"""
APART = "self.k_emb, self.v_emb = nn.Linear(d_model, self.d), nn.Linear(d_model, self.d)"
USUAL = {"keys": APART, "split": "self.k_emb(x), self.v_emb(x)", "scale": "self.d ** -0.5"}
IN_ONE = {**USUAL, "keys": "self.kv = nn.Linear(d_model, 2 * self.d)", "split": "self.kv(x).chunk(2, -1)"}
FUSED = {
    **USUAL,
    "keys": "self.query_key_value = nn.Linear(d_model, d_model + 2 * self.d)",
    "split": "x[..., -2 * self.d :].chunk(2, -1)",
}
FUNCTION = """
def f(query, key, value, mask=None):
    s = torch.einsum('bhqd,bkd->bhqk', query, key) * {scale}
    s = s if mask is None else s.masked_fill(~mask, -torch.inf)
    return torch.einsum('bhqk,bkd->bhqd', s.softmax(-1), value)
"""
GROUPS = """
class f(nn.Module):
    def __init__(self, d_model, num_heads, num_groups):
        super().__init__()
        self.h, self.g, d, e = num_heads, num_groups, d_model // num_heads, d_model
        self.q, self.k, self.v = nn.Linear(e, e), nn.Linear(e, d * self.g), nn.Linear(e, d * self.g)
    def forward(self, x):
        k, v = (split(each(x), self.g).repeat_interleave(self.h // self.g, 1) for each in (self.k, self.v))
        return attend(split(self.q(x), self.h), k, v)[0].transpose(1, 2).flatten(2)
"""
RIGHT = {
    "a module": MODULE.format(**USUAL),
    "key and value in one": MODULE.format(**IN_ONE),
    "query, key and value in one": MODULE.format(**FUSED)
    .replace("self.q_emb, self.out = nn.Linear(d_model, d_model),", "self.out =")
    .replace(
        "q = split(self.q_emb(x), self.h)", "x = self.query_key_value(x); q = split(x[..., : -2 * self.d], self.h)"
    ),
    "a function": FUNCTION.format(scale="query.shape[-1] ** -0.5"),
    "a number of groups": GROUPS,
}


@pytest.mark.parametrize("text", RIGHT.values(), ids=RIGHT)
def test_a_right_one_conforms(make: Make, text: str) -> None:
    made = make(text)
    assert Feature.GROUPED in made.claims
    assert_conforms(made)


def test_what_presumes_a_key_head_for_each_head_is_not_asked(make: Make) -> None:
    verdicts = run(make(RIGHT["a module"]), ("heads.*",), ("float32",))
    assert not {verdict.status for verdict in verdicts} & {Status.FAIL, Status.ERROR}
    assert "heads.independent" in {verdict.clause for verdict in verdicts if verdict.status is Status.PASS}


def test_a_function_whose_keys_have_no_axis_of_heads_is_not_given_several(make: Make) -> None:
    names = ("relations.permute-heads", "gradients.shared-input", "grouped.whole-groups")
    verdicts = run(make(RIGHT["a function"]), names, ("float32",))
    assert {verdict.clause: verdict.status for verdict in verdicts} == dict.fromkeys(names, Status.PASS)


def test_a_wrong_one_does_not_conform(make: Make) -> None:
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(make(FUNCTION.format(scale="key.shape[-2] ** -0.5")))
