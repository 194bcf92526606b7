"""Functions of T5's biases of distances, whose table has a name of its own."""

import pytest

from attention_conformance.spec.conventions import DefaultScale
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

T5 = """
def t5_attention(q, k, v, {table}bidirectional=True, max_distance=128):
    at, places = torch.arange(k.shape[2]), torch.arange(q.shape[2])[:, None]
    far, count = {ahead}, len(own) // (2 if bidirectional else 1)
    rows = (far {later}) * count if bidirectional else 0
    far = far.abs() if bidirectional else (-far).clamp(min=0)
    exact = count // 2
    log = (far.clamp(min=1).float() / exact).log() / math.log(max_distance / exact) * (count - exact)
    rows = rows + torch.where(far < exact, far, (exact + log.long()).clamp(max=count - 1))
    s = q @ k.mT + own[rows].permute(2, 0, 1)
    if not bidirectional and {causal}:
        s = s.masked_fill(at > places, -torch.inf)
    return s.softmax(-1) @ v
"""


@pytest.mark.parametrize("name", ["rel_bias", "bias_table"])
@pytest.mark.parametrize(
    ("ahead", "later", "causal", "wrong"),
    [
        ("at - places", "> 0", False, False),
        ("at - places", "> 0", True, False),
        ("places - at", "> 0", False, True),
        ("at - places", ">= 0", False, True),
    ],
)
def test_the_table_of_buckets_has_any_name(
    make: Make, name: str, ahead: str, later: str, causal: bool, wrong: bool
) -> None:
    text = T5.format(table=f"{name}, ", ahead=ahead, later=later, causal=causal).replace("own", name)
    made = make(text, "t5_attention")
    assert made.claims.conventions.default_scale is DefaultScale.ONE
    assert Feature.BUCKETED_BIAS in made.claims
    assert (Feature.BUCKET_DIRECTIONS in made.claims) is not causal
    assert bool(failing(made, "scores.scale-default", "bucketed-bias.*")) is wrong


@pytest.mark.parametrize("count", ["num_buckets=32, ", "n_buckets, "])
@pytest.mark.parametrize(("ahead", "wrong"), [("at - places", False), ("places - at", True)])
def test_a_table_has_as_many_rows_as_are_stated(make: Make, count: str, ahead: str, wrong: bool) -> None:
    own = count.partition("=")[0].strip(", ")
    text = T5.format(table=f"rel_bias, {count}", ahead=ahead, later="> 0", causal=True).replace("len(own)", own)
    made = make(text.replace("own[", "rel_bias["), "t5_attention")
    assert {Feature.BUCKETED_BIAS, Feature.BUCKET_DISTANCE} <= made.claims.features
    assert bool(failing(made, "scores.scale-default", "bucketed-bias.*")) is wrong


def test_another_parameter_is_no_table(make: Make) -> None:
    text = "def f(q, k, v, rel_bias=None, max_len=128):\n    return attend(q, k, v)[0]"
    assert Feature.BUCKETED_BIAS not in make(text).claims


LAYER = """
import math
from torch import nn

class T5Layer(nn.Module):
    def __init__(self, d_model, num_heads, num_buckets=32, max_distance=128, is_decoder=False):
        super().__init__()
        self.heads, self.num_buckets, self.max_distance = num_heads, num_buckets, max_distance
        self.is_decoder = is_decoder
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)

    def rows(self, ahead):
        count = self.num_buckets if self.is_decoder else self.num_buckets // 2
        far = {behind} if self.is_decoder else ahead.abs()
        exact = count // 2
        log = (far.clamp(min=1) / exact).log() / math.log(self.max_distance / exact) * (count - exact)
        rows = torch.where(far < exact, far, (exact + log.long()).clamp(max=count - 1))
        return rows if self.is_decoder else rows + (ahead > 0) * count

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        place = torch.arange(x.shape[1])
        ahead = place - place[:, None]
        s = q @ k.mT + self.relative_attention_bias(self.rows(ahead)).permute(2, 0, 1)
        if self.is_decoder:
            s = s.masked_fill(ahead > 0, -torch.inf)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("behind", "wrong"), [("(-ahead).clamp(min=0)", False), ("ahead.clamp(min=0)", True)])
def test_the_buckets_of_a_decoder_are_looked_at_too(make: Make, behind: str, wrong: bool) -> None:
    made = make(LAYER.format(behind=behind), "T5Layer")
    assert bool(failing(made, "modules.as-built", dtype="float64")) is wrong
