"""Modules with norms of queries and keys inside are judged with them: which they are is seen, and a wrong one fails."""

import pytest
from torch import nn

from attention_conformance.implementations.discovery.modules.query_key_norms import FoundNorm, query_key_norms, role_of
from attention_conformance.spec.conventions import NormDefault, NormGain, NormKind, NormOrder, NormSpan
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

MODULE = """
class Shifted(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * (1.0 + self.weight)

def rotated(x):
    width = x.shape[-1]
    angles = torch.arange(x.shape[-2])[:, None] * 10000.0 ** (-torch.arange(0, width, 2).double() / width)
    c, s = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, two = x.chunk(2, -1)
    return torch.cat([one * c - two * s, one * s + two * c], -1)

class f(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.heads = num_heads
        head = embed_dim // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))
        self.q_norm, self.k_norm = NORM, NORM
    def forward(self, x):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        BEFORE
        q, k, v = (split(each, self.heads) for each in (q, k, v))
        AFTER
        return self.o_proj(attend(q, k, v)[0].transpose(1, 2).flatten(2))
"""
NORMED = "q, k = self.q_norm(q), self.k_norm(k)"
FIRST, LAST = f"{NORMED}; q, k = rotated(q), rotated(k)", f"q, k = rotated(q), rotated(k); {NORMED}"
RIGHT: dict[str, tuple[str, str, str, dict[str, object]]] = {
    "head": ("nn.RMSNorm(head, eps=1e-6)", "", NORMED, {"norm_kind": NormKind.RMS}),
    "default": ("nn.RMSNorm(head)", "", NORMED, {"norm_default": NormDefault.SPACING}),
    "width": ("nn.RMSNorm(embed_dim, eps=1e-6)", NORMED, "", {"norm_span": NormSpan.WIDTH}),
    "layer": ("nn.LayerNorm(head)", "", NORMED, {"norm_kind": NormKind.LAYER}),
    "bare": ("nn.LayerNorm(head, elementwise_affine=False)", "", NORMED, {"norm_span": NormSpan.BARE}),
    "plus-one": ("Shifted(head)", "", FIRST, {"norm_gain": NormGain.PLUS_ONE, "norm_order": NormOrder.FIRST}),
    "last": ("nn.RMSNorm(head, eps=1e-5)", "", LAST, {"norm_order": NormOrder.LAST}),
}
WRONG = {
    "the norm of queries for keys": ("q, k = self.q_norm(q), self.q_norm(k)", "scores.dot-product"),
    "keys as they are": ("q = self.q_norm(q)", "scores.dot-product"),
    "out of the graph": ("q, k = self.q_norm(q).detach() + 0 * q, self.k_norm(k)", "qk-norm.gradient"),
}


def text(norm: str, before: str, after: str) -> str:
    return (
        MODULE.replace("NORM,", f"{norm},")
        .replace("NORM\n", f"{norm}\n")
        .replace("BEFORE", before)
        .replace("AFTER", after)
    )


@pytest.mark.parametrize("name", RIGHT)
def test_it_is_recognised_and_conforms(make: Make, name: str) -> None:
    norm, before, after, conventions = RIGHT[name]
    made = make(text(norm, before, after))
    assert made.claims.premises.qk_norm
    assert "always" in made.about
    assert "qk-norm" in made.about
    assert {key: getattr(made.claims.conventions, key) for key in conventions} == conventions
    verdicts = run(made, ("scores.dot-product", "qk-norm.*"), ("float64", "bfloat16"))
    assert {v.clause for v in verdicts} >= {"scores.dot-product", "qk-norm.scores", "qk-norm.gradient"}
    assert not [v for v in verdicts if v.status is Status.FAIL]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_is_not_judged_without_its_norms(make: Make, name: str) -> None:
    after, clause = WRONG[name]
    made = make(text("nn.RMSNorm(head, eps=1e-6)", "", after))
    (verdict,) = run(made, (clause,), ("float64",))
    assert verdict.status is Status.FAIL


def test_what_stands_in_front_of_the_projections_is_no_norm_of_queries(make: Make) -> None:
    made = make(
        MODULE.replace("NORM,", "nn.LayerNorm(embed_dim),")
        .replace("NORM\n", "nn.LayerNorm(embed_dim)\n")
        .replace("self.q_proj(x), self.k_proj(x)", "self.q_proj(self.q_norm(x)), self.k_proj(self.k_norm(x))")
        .replace("BEFORE", "")
        .replace("AFTER", "")
    )
    assert not made.claims.premises.qk_norm
    assert "judged without q_norm, k_norm" in made.stated


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("q_norm", "query"),
        ("attn.k_layernorm", "key"),
        ("normQ", "query"),
        ("kln", "key"),
        ("norm", ""),
        ("k_proj", ""),
    ],
)
def test_names_of_norms(name: str, role: str) -> None:
    assert role_of(name) == role


def test_two_norms_that_differ_are_not_one_kind() -> None:
    module = nn.ModuleDict({"q_norm": nn.RMSNorm(4, eps=1e-6), "k_norm": nn.RMSNorm(4, eps=1e-5)})
    assert query_key_norms(module, 3, 12) is None
    module["k_norm"] = nn.RMSNorm(4, eps=1e-6)
    assert query_key_norms(module, 3, 12) == FoundNorm(NormKind.RMS, NormGain.PLAIN, 1e-6, 4, ("q_norm", "k_norm"))


ALWAYS = {
    "rms": ("F.rms_norm(x, x.shape[-1:])", "qk-norm=default", NormKind.RMS),
    "epsilon": ("x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)", "qk-norm=1e-05", NormKind.RMS),
    "cosine": ("F.normalize(x, dim=-1)", "qk-norm=1e-12", NormKind.L2),
}


@pytest.mark.parametrize("name", ALWAYS)
def test_norms_without_a_module_are_recognised(make: Make, name: str) -> None:
    norm, setting, kind = ALWAYS[name]
    made = make(f"def f(q, k, v, **more):\n    q, k = ({norm} for x in (q, k))\n    return attend(q, k, v)[0]")
    assert made.claims.premises.settings() == (setting,)
    assert "qk-norm not claimed" not in made.about
    assert (made.claims.conventions.norm_kind, made.claims.conventions.norm_span) == (kind, NormSpan.BARE)
    verdicts = run(made, ("scores.dot-product", "qk-norm.scores", "qk-norm.range"), ("float64", "float32"))
    assert [v.status for v in verdicts] == [Status.PASS] * 6


def test_queries_alone_are_no_norm_of_both(make: Make) -> None:
    made = make("def f(q, k, v):\n    return attend(F.rms_norm(q, q.shape[-1:]), k, v)[0]")
    assert not made.claims.premises.qk_norm


@pytest.mark.parametrize(
    ("values", "wrong"), [("", False), ("v = v + v.mean(1, keepdim=True) * (v.shape[1] == 2)", True)]
)
def test_a_norm_over_the_width_leaves_each_head_its_own_values(make: Make, values: str, wrong: bool) -> None:
    made = make(text("nn.RMSNorm(embed_dim, eps=1e-6)", NORMED, values))
    (verdict,) = run(made, ("heads.independent",), ("float32",))
    assert made.claims.premises.qk_norm
    assert verdict.status is (Status.FAIL if wrong else Status.PASS)


COSINES = """
def f(q, k, v):
    q, k = F.normalize(q, dim={axis}), F.normalize(k, dim={axis})
    return (q @ k.mT * {factor}).softmax(-1) @ v
"""


@pytest.mark.parametrize("factor", ["1.0", "10.0"])
def test_cosines_times_a_number_are_a_premise(make: Make, factor: str) -> None:
    made = make(COSINES.format(axis=-1, factor=factor))
    assert (made.claims.premises.qk_norm, made.claims.premises.scale) == (True, float(factor))
    assert_conforms(made)


@pytest.mark.parametrize(("axis", "factor"), [(-2, "10.0"), (1, "10.0"), (-1, "q.shape[-2]")])
def test_cosines_across_tokens_or_heads_or_by_the_length_are_mistakes(make: Make, axis: int, factor: str) -> None:
    assert failing(make(COSINES.format(axis=axis, factor=factor)), "scores.dot-product", "heads.independent")
