"""Modules whose scores depend on distances: rotations of a part of a head, of other bases, and tokens farther on."""

from pathlib import Path

import pytest

from attention_conformance.implementations.adapters.as_built import AsBuilt
from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import START, Make, assert_conforms, refused

ROTARY = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def rotate(self, x, place, pair=True):
        r = {dim}
        angles = place[:, None] * {base} ** (-torch.arange(0, r, 2) / r) / {slower}
        cos, sin = (t.{repeated}.to(x) for t in (angles.cos(), angles.sin()))
        a, b = x[..., :r].unflatten(-1, {pairs}).unbind({axis})
        other = torch.{joined}
        return torch.cat([x[..., :r] * cos + other.reshape(x[..., :r].shape) * sin, x[..., r:]], -1)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        place = torch.arange(x.shape[1])
        q, k = self.rotate(q, place), {key}
        return self.out(attend(q, k, v, causal=True)[0].transpose(1, 2).flatten(2))
"""
HALVES = {"pairs": "(2, -1)", "axis": "-2", "joined": "cat([-b, a], -1)", "repeated": "repeat(1, 2)"}
EVERY_TWO = {
    "pairs": "(-1, 2)",
    "axis": "-1",
    "joined": "stack([-b, a], -1)",
    "repeated": "repeat_interleave(2, -1)",
}


def rotary(pairs: dict[str, str], **others: str) -> str:
    usual = {"dim": "x.shape[-1]", "base": "1e4", "slower": "1", "key": "self.rotate(k, place)"}
    return ROTARY.format(**{**usual, **pairs, **others})


@pytest.mark.parametrize(
    ("text", "premise"),
    [
        (rotary(HALVES, dim="4"), "rotary=10000:4"),
        (rotary(EVERY_TWO, dim="4"), "rotary=10000:4"),
        (rotary(EVERY_TWO, dim="2"), "rotary=10000:2"),
        (rotary(HALVES, base="300."), "rotary=300"),
    ],
)
def test_rotations_of_a_part_or_of_another_base_are_premises(make: Make, text: str, premise: str) -> None:
    made = make(text)
    assert made.claims.premises.settings() == ("causal", premise)
    assert_conforms(made)


@pytest.mark.parametrize("slower", ["8", "torch.linspace(1, 4, r // 2)"])
def test_angles_of_no_base_are_not_accused(make: Make, slower: str) -> None:
    assert "by angles of its own" in refused(make, rotary(HALVES, slower=slower))


@pytest.mark.parametrize("key", ["k", "self.rotate(k, -place)", "self.rotate(k, place // 2)"])
def test_what_is_no_rotation_by_distances_is_accused(make: Make, key: str) -> None:
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(make(rotary(HALVES, key=key)))


def test_another_scale_is_accused_with_rotations(make: Make) -> None:
    text = rotary(HALVES).replace("causal=True)", "causal=True, scale=x.shape[-1] ** -0.5)")
    with pytest.raises(AssertionError, match="elements differ"):
        assert_conforms(make(text))


DISTANCES = """
class f(nn.Module):
    def __init__(self, d_model, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        {parts}
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        place = torch.arange(x.shape[1])
        {scores}
        s = s.masked_fill(place > place[:, None], -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""
SKEWED = """rel = q @ self.rel_rows[150 - len(place):].mT
        {pad}
        s = (q @ k.mT + {shifted}) / q.shape[-1] ** 0.5"""
TABLE = "self.rel_rows = nn.Parameter(torch.randn(150, d_model // heads))"
PADDED = "rel = F.pad(rel, (1, 0)).view(*rel.shape[:2], -1, rel.shape[2])[:, :, 1:]"


def distances(parts: str, *scores: str) -> str:
    return DISTANCES.format(parts=parts, scores="\n        ".join(scores))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (distances(TABLE, SKEWED.format(pad=PADDED, shifted="rel")), False),
        (distances(TABLE, SKEWED.format(pad="pass", shifted="rel")), True),
        (
            distances(
                "self.rel_bias = nn.Embedding(33, heads)",
                "apart = (place - place[:, None]).clamp(-16, 16) + 16",
                "s = q @ k.mT / q.shape[-1] ** 0.5 + self.rel_bias(apart).permute(2, 0, 1)",
            ),
            False,
        ),
        (
            distances(
                "self.rel_bias = nn.Embedding(33, heads)",
                "apart = (place - place[:, None] // 2).clamp(-16, 16) + 16",
                "s = q @ k.mT / q.shape[-1] ** 0.5 + self.rel_bias(apart).permute(2, 0, 1)",
            ),
            True,
        ),
    ],
)
def test_tokens_farther_on_have_the_same_weights_among_each_other(make: Make, text: str, wrong: bool) -> None:
    made = make(text)
    whole = made.modes[Feature.AS_BUILT]
    assert isinstance(whole, AsBuilt)
    assert "with one head, in a long sequence" in whole.otherwise
    (found,) = run(made, ("modules.as-built",), ("float64",))
    assert (found.status is Status.FAIL) is wrong


@pytest.mark.parametrize(("repeated", "wrong"), [("repeat(1, 2)", False), ("repeat_interleave(2, -1)", True)])
def test_a_part_of_rotations_in_a_form_that_is_unknown(tmp_path: Path, repeated: str, wrong: bool) -> None:
    """Where the pairs of components are mixed up, it is no rotation by any angles."""
    text = rotary({**HALVES, "repeated": repeated}, dim="2 * math.ceil(x.shape[-1] / 4)", slower="4")
    file = tmp_path / "mine.py"
    file.write_text(START + text)
    made = candidate(f"{file}:f", {}, in_part=True)
    found = run(made, ("modules.as-built", "scores.dot-product"), ("float64",))
    assert any(each.status is Status.FAIL for each in found) is wrong


UNSCALED = """
class T5Attention(nn.Module):
    def __init__(self, d_model, num_heads, is_decoder=True, num_buckets=8, max_distance=20):
        super().__init__()
        self.h, self.is_decoder = num_heads, is_decoder
        self.num_buckets, self.max_distance = num_buckets, max_distance
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in "qkvo")
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
    def forward(self, x):
        q, k, v = (split(each(x), self.h) for each in (self.q, self.k, self.v))
        at = torch.arange(x.shape[1])
        ahead = at - at[:, None]
        count = self.num_buckets if {one_sided} else self.num_buckets // 2
        far = (-ahead).clamp(0) if {one_sided} else ahead.abs()
        exact = count // 2
        log = (far.clamp(1) / exact).log() / math.log(self.max_distance / exact)
        rows = torch.where(far < exact, far, (exact + (log * (count - exact)).long()).clamp(max=count - 1))
        rows = rows if {one_sided} else rows + count * (ahead > 0)
        biases = self.relative_attention_bias(rows).permute(2, 0, 1)
        biases = biases.masked_fill((ahead > 0) & {causal}, torch.finfo(biases.dtype).min)
        return self.o(attend(q, k, v, biases, scale={scale})[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("causal", "one_sided", "scale", "wrong"),
    [
        ("self.is_decoder", "self.is_decoder", "1.0", False),
        ("False", "self.is_decoder", "1.0", False),
        ("self.is_decoder", "False", "1.0", True),
        ("False", "False", "1.0", True),
        ("self.is_decoder", "self.is_decoder", "2 / q.shape[-1]", True),
    ],
)
def test_buckets_of_a_decoder(make: Make, causal: str, one_sided: str, scale: str, wrong: bool) -> None:
    """Its mask may be made elsewhere, and it may be built as none; its scores are not scaled, as those of T5."""
    made = make(UNSCALED.format(causal=causal, one_sided=one_sided, scale=scale), "T5Attention")
    found = run(made, ("modules.as-built", "scores.dot-product", "scores.scale-default"), ("float64",))
    assert any(each.status is Status.FAIL for each in found) is wrong


PLACED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def rotary(self, x, at):
        a, b = x.chunk(2, -1)
        turns = at[:, None, :, None] * 10000.0 ** -(torch.arange(a.shape[-1]) / a.shape[-1])
        return torch.cat([a * turns.cos() - b * turns.sin(), b * turns.cos() + a * turns.sin()], -1)
    def forward(self, x, position_ids=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        usual = torch.arange(x.shape[1])[None]
        position_ids = usual if position_ids is None else position_ids
        q, k = self.rotary(q * (1.0 + q.norm(dim=-1, keepdim=True)), position_ids), self.rotary(k, {keys})
        return self.out(attend(q, k, v, causal=True)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("keys", "wrong"), [("position_ids", False), ("usual", True)])
def test_all_positions_may_be_larger(tmp_path: Path, keys: str, wrong: bool) -> None:
    file = tmp_path / "mine.py"
    file.write_text(START + PLACED.format(keys=keys))
    made = candidate(f"{file}:f", {}, in_part=True)
    assert "its numbers" in made.findings
    (found,) = run(made, ("modules.as-built",), ("float64",))
    assert (found.status is Status.FAIL) is wrong
