"""One head of key and value for all heads of the query, in modules and functions: judged as they are."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

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


SLOPED = '''
class f(nn.Module):
    """Causal attention with linear biases.{words}"""
    def __init__(self, d_model=64, n_heads=8, kv_n_heads=2):
        super().__init__()
        self.h, self.g, self.d = n_heads, kv_n_heads, d_model // n_heads
        self.Wqkv = nn.Linear(d_model, d_model + 2 * kv_n_heads * self.d, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)
    def forward(self, x, key_padding_mask=None):
        each, n = self.g * self.d, 2 ** math.ceil(math.log2(self.h))
        q, k, v = self.Wqkv(x).split([self.h * self.d, each, each], -1)
        q, (k, v) = split(q, self.h).unflatten(1, (self.g, -1)), (split(x, self.g)[:, :, None] for x in (k, v))
        slopes = 2.0 ** -(torch.arange(1, n + 1, dtype=torch.float64) * (8 / n))
        slopes = slopes if n == self.h else torch.cat([slopes[1::2], slopes[::2]])[: self.h]
        places = torch.arange(x.shape[1])
        far = places - places[:, None]
        s = q @ k.mT * self.d ** -0.5 + ({order}[..., None, None] * far).to(q.dtype)
        seen = (far <= 0)[None] if key_padding_mask is None else (far <= 0) & {seen}[:, None]
        s = s.masked_fill(~seen[:, None, None], torch.finfo(s.dtype).min)
        return self.out_proj((s.softmax(-1) @ v).flatten(1, 2).transpose(1, 2).flatten(2))
'''
IN_ORDER = {
    "words": " key_padding_mask: [b, s], True for tokens and False for padding.",
    "order": "slopes.view(self.g, -1)",
    "seen": "key_padding_mask",
}
PUBLISHED = {"words": "", "seen": "~key_padding_mask"}
SLIPS = {
    "heads of groups first": {"order": "slopes.view(-1, self.g).mT"},
    "padding other than documented": {"seen": "~key_padding_mask"},
    "padding other than its name promises": {"words": ""},
}


@pytest.mark.parametrize("change", [{}, PUBLISHED], ids=["documented", "published"])
def test_slopes_of_heads_in_groups_conform(make: Make, change: dict[str, str]) -> None:
    made = make(SLOPED.format(**{**IN_ORDER, **change}))
    assert Feature.GROUPED in made.claims
    assert made.claims.premises.alibi
    assert not failing(made, "grouped.*", "masks.*", "scores.*", dtype="float64")


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
def test_slips_of_heads_in_groups_are_accused(make: Make, slip: dict[str, str]) -> None:
    assert failing(make(SLOPED.format(**{**IN_ORDER, **slip})), "grouped.*", "masks.key-padding", dtype="float64")
