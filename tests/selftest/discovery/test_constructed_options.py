"""Options that a constructor has off by default: a causal flag, a scale, a cap, ALiBi, rotations; and slips."""

import pytest

from attention_conformance.spec.conventions import CausalWithMask
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

TEXT = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads, {option}):
        super().__init__()
        self.h, self.d, self.on = num_heads, embed_dim // num_heads, {name}
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(embed_dim, embed_dim) for _ in range(4))

    def rotated(self, x, base=100.0):
        angles = torch.arange(x.shape[-2])[:, None] * base ** (-torch.arange(0, self.d, 2) / self.d)
        first, second = x.chunk(2, -1)
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def forward(self, {inputs}):
        on, d = self.on, self.d
        projected = self.q_proj(x), self.k_proj({other}), self.v_proj({other})
        q, k, v = (split(each, self.h) for each in projected)
        {before}
        s = q @ k.mT * {scale}
        {after}
        return self.o_proj((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
TRIANGLE = "s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu({k}), -torch.inf) if on else s"
SLOPES = "2.0 ** (-8 * torch.arange(1, self.h + 1) / self.h)"
BIASED = """if on:
            places = torch.arange(s.shape[-1])
            s = s - {slopes}.to(s)[:, None, None] * (places - places[:, None]).abs()"""


def text(option: str, scale: str = "d ** -0.5", before: str = "pass", after: str = "pass", cross: bool = False) -> str:
    inputs, other = ("x, context", "context") if cross else ("x", "x")
    name = option.partition(":")[0].partition("=")[0]
    return TEXT.format(option=option, name=name, scale=scale, before=before, after=after, inputs=inputs, other=other)


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize(("k", "wrong"), [("1", False), ("2", True), ("1 + (s.shape[-1] > 12)", True)])
def test_a_causal_flag(make: Make, k: str, wrong: bool, cross: bool) -> None:
    made = make(text("causal=False", after=TRIANGLE.format(k=k), cross=cross))
    assert Feature.CAUSAL in made.claims
    assert "built with 'causal' for causal" in made.stated
    clauses = ("causal.square", "shapes.combinations", "shapes.tile-edges")
    assert bool(failing(made, *clauses, dtype="float64")) is wrong
    if not wrong:
        assert_conforms(made)


@pytest.mark.parametrize(
    ("after", "why"),
    [
        ("s = s.masked_fill(torch.arange(s.shape[-1]) > 4, -torch.inf) if on else s", "no triangle"),
        ("pass", "changes nothing"),
    ],
)
def test_a_causal_flag_of_another_kind(make: Make, after: str, why: str) -> None:
    made = make(text("is_causal: bool = False", after=after))
    assert Feature.CAUSAL not in made.claims
    assert why in made.findings["is_causal"]


@pytest.mark.parametrize(
    ("scale", "wrong"),
    [
        ("(d ** -0.5 if on is None else on)", False),
        ("(on or d ** -0.5)", False),
        ("(on ** 2 if on else d ** -0.5)", True),
    ],
)
def test_a_scale(make: Make, scale: str, wrong: bool) -> None:
    made = make(text("qk_scale=None", scale=scale))
    assert Feature.SCALE in made.claims
    assert bool(failing(made, "scores.scale-explicit")) is wrong
    if not wrong:
        assert_conforms(made)


SAID = {
    "a factor of the scores, head_dim ** -0.5 if None": True,
    "overrides the default scale of the products if set": True,
    "a factor of the scores, unused in the fused path": False,
    "kept so that old settings load": False,
}


@pytest.mark.parametrize(("said", "promised"), SAID.items())
@pytest.mark.parametrize(("scale", "ignored"), [("d ** -0.5", True), ("(on or d ** -0.5)", False)])
def test_a_scale_is_followed_where_documentation_states_it(
    make: Make, said: str, promised: bool, scale: str, ignored: bool
) -> None:
    documented = f'class f(nn.Module):\n    """Attention.\n\n    Args:\n        qk_scale: {said}\n    """\n'
    made = make(text("qk_scale=None", scale=scale).replace("class f(nn.Module):\n", documented))
    assert (Feature.SCALE in made.claims) is (promised or not ignored)
    if Feature.SCALE in made.claims:
        assert failing(made, "scores.scale-explicit") == ({"scores.scale-explicit"} if ignored else set())
    else:
        assert "changes nothing" in made.findings["qk_scale"]


def test_a_scale_that_may_mean_something_else(make: Make) -> None:
    made = make(text("scale=None", scale="(d ** -0.5 / (on or 1.0))"))
    assert Feature.SCALE not in made.claims
    assert "no factor" in made.findings["scale"]


@pytest.mark.parametrize("name", ["softcap", "attn_logit_softcapping", "logit_soft_cap"])
@pytest.mark.parametrize(("cap", "wrong"), [("on * torch.tanh(s / on)", False), ("torch.tanh(s / on)", True)])
def test_a_cap(make: Make, name: str, cap: str, wrong: bool) -> None:
    made = make(text(f"{name}=None", after=f"s = {cap} if on else s"))
    assert Feature.SOFTCAP in made.claims
    assert bool(failing(made, "softcap.formula")) is wrong


@pytest.mark.parametrize(("slopes", "wrong"), [(SLOPES, False), (f"({SLOPES}) * (1 + (s.shape[-1] > 12))", True)])
def test_alibi(make: Make, slopes: str, wrong: bool) -> None:
    made = make(text("use_alibi=False", after=BIASED.format(slopes=f"({slopes})")))
    assert Feature.ALIBI in made.claims
    assert bool(failing(made, "positions.alibi", "shapes.combinations", "shapes.tile-edges", dtype="float64")) is wrong


def test_slopes_of_no_rule(make: Make) -> None:
    made = make(text("alibi=False", after=BIASED.format(slopes=f"({SLOPES}).sqrt()")))
    assert Feature.ALIBI not in made.claims
    assert "are not those of ALiBi" in made.findings["alibi"]


@pytest.mark.parametrize(("key", "wrong"), [("k", False), ("k.roll(int(k.shape[-2] > 24), -2)", True)])
def test_rotations(make: Make, key: str, wrong: bool) -> None:
    made = make(text("use_rope=False", before=f"q, k = (self.rotated(q), self.rotated({key})) if on else (q, k)"))
    assert Feature.ROTARY in made.claims
    assert bool(failing(made, "positions.rotary", "shapes.combinations", "shapes.tile-edges", dtype="float64")) is wrong


def test_two_options(make: Make) -> None:
    both = text("causal=False, softcap=None", after=TRIANGLE.format(k=1))
    capped = both.replace(
        "        s = s.masked",
        "        s = self.cap * torch.tanh(s / self.cap) if self.cap else s\n        s = s.masked",
    )
    made = make(capped.replace("super().__init__()", "super().__init__()\n        self.cap = softcap"))
    assert {Feature.CAUSAL, Feature.SOFTCAP} <= made.claims.features
    assert_conforms(made)
    assert not failing(made, "shapes.combinations")


MASKED = """
class f(nn.Module):
    def __init__(self, dim, num_heads, causal=False):
        super().__init__()
        self.h, self.causal = num_heads, causal
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, attn_mask=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        output = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, is_causal=self.causal{unless})
        return self.proj(output.transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("unless", "meant"), [("", CausalWithMask.ERROR), (" and attn_mask is None", CausalWithMask.MASK_ALONE)]
)
def test_a_causal_flag_next_to_masks(make: Make, unless: str, meant: CausalWithMask) -> None:
    made = make(MASKED.format(unless=unless))
    assert {Feature.CAUSAL, Feature.BOOL_MASK} <= made.claims.features
    assert made.claims.conventions.causal_with_mask is meant
    assert not failing(made, "causal.square", "causal.with-mask", "masks.bool", "shapes.meetings", dtype="float64")


def test_a_cap_that_clamps(make: Make) -> None:
    made = make(text("logit_cap=None", after="s = s.clamp(-on, on) if on else s"))
    assert Feature.SOFTCAP not in made.claims
    assert "clamped" in made.findings["logit_cap"]


def test_rotations_of_queries_at_the_end_of_the_keys(make: Make) -> None:
    at_end = "self.rotated(torch.cat([k[..., : k.shape[-2] - q.shape[-2], :], q], -2))[..., -q.shape[-2] :, :]"
    made = make(text("use_rope=False", before=f"q, k = ({at_end}, self.rotated(k)) if on else (q, k)", cross=True))
    assert Feature.ROTARY in made.claims
    assert_conforms(made)


KEY_SIZE = """
from dataclasses import dataclass

@dataclass
class AttentionConfig:
    width: int = 64
    num_heads: int = 4
    key_size: int = 16

class f(nn.Module):
    def __init__(self, cfg: AttentionConfig):
        super().__init__()
        self.cfg, inner = cfg, cfg.num_heads * cfg.key_size
        self.query, self.key, self.value = (nn.Linear(cfg.width, inner) for _ in range(3))
        self.final = nn.Linear(inner, cfg.width)
    def forward(self, x):
        q, k, v = (split(p(x), self.cfg.num_heads) for p in (self.query, self.key, self.value))
        return self.final(attend(q, k, v, scale=self.cfg.{scale} ** -0.5)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("scale", "wrong"), [("key_size", False), ("width", True)])
def test_a_key_size_next_to_a_width_is_that_of_a_head(make: Make, scale: str, wrong: bool) -> None:
    assert bool(failing(make(KEY_SIZE.format(scale=scale)), "scores.dot-product", dtype="float64")) is wrong
