"""Tried arguments: a class that needs what no name states is built and called by trial, and judged by relations."""

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import Make, failing, refused

CONDITIONED = """
class f(nn.Module):
    def __init__(self, d_model, d_head, cond_features, norm_layer):
        super().__init__()
        self.h, self.qkv = d_model // d_head, nn.Linear(d_model, 3 * d_model)
        self.norm, self.opened = norm_layer(d_model), nn.Linear(cond_features, d_model)
        self.out = nn.Linear(d_model, d_model)
    def forward(self, x, pos, pair_mask, cond):
        at = pos[..., 0] - pos[..., 1]
        x = self.norm(x, cond) + at[..., None].sin()
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        y = attend(q, k, v, pair_mask)[0].transpose(1, 2).flatten(2)
        return self.out(y * self.opened(9 * cond).sigmoid(){row})
"""
POOLED = """
class f(nn.Module):
    def __init__(self, in_features, num_heads=8, latent_len=2):
        super().__init__()
        self.h, self.latent = num_heads, nn.Parameter(torch.randn(latent_len, in_features))
        self.kv, self.out = nn.Linear(in_features, 2 * in_features), nn.Linear(in_features, in_features)
    def forward(self, x):
        k, v = (split(each, self.h) for each in self.kv(x).chunk(2, -1))
        q = split(self.latent.expand(len(x), -1, -1), self.h)
        return self.out(attend(q, k, v)[0].transpose(1, 2).flatten(2)).mean(1){scaled}
"""
SETTINGS = """
class f(nn.Module):
    def __init__(self, config, block_idx):
        super().__init__()
        self.h, self.size, self.config = config.n_head, config.head_size, config
        self.spans = config.spans[block_idx] if config.spans is not None else None
        self.qkv = nn.Linear(config.n_embd, 3 * self.h * self.size)
        self.down = nn.Linear(config.n_embd, config.kv_lora_rank)
        self.out = nn.Linear(self.h * self.size + config.kv_lora_rank, config.n_embd)
    def forward(self, x, cos, sin):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        q, k = (each * cos + each.roll(1, -1) * sin for each in (q, k))
        y = attend(q, k, v, causal=True)[0].transpose(1, 2).flatten(2)
        return self.out(torch.cat([y, self.down({given})], -1))
"""
SQUARE = """
class f(nn.Module):
    def __init__(self, dim, num_heads=4):
        super().__init__()
        self.h, self.qk, self.v = num_heads, nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
        self.far, self.gate = nn.Linear(2, num_heads), nn.Parameter(torch.ones(num_heads))
    def forward(self, x):
        side = int(x.shape[1] ** 0.5)
        rows, columns = (each.flatten() for each in torch.meshgrid(*[torch.arange(side).to(x)] * 2, indexing="ij"))
        apart = torch.stack([rows[:, None] - rows, columns[:, None] - columns], -1)
        near = self.far(apart).permute(2, 0, 1).softmax(-1).expand(len(x), -1, -1, -1)
        q, k = (split(each, self.h) for each in self.qk(x).chunk(2, -1))
        gate = self.gate.sigmoid()[:, None, None]
        p = (1 - gate) * attend(q, k, q)[1] + gate * near
        return (p @ split(self.v(x), self.h)).transpose(1, 2).flatten(2){scaled}
"""
IMAGE = """
class f(nn.Module):
    def __init__(self, in_dim):
        super().__init__()
        self.q, self.k = nn.Conv2d(in_dim, in_dim // 2, 1), nn.Conv2d(in_dim, in_dim // 2, 1)
        self.v, self.gamma = nn.Conv2d(in_dim, in_dim, 1), nn.Parameter(torch.tensor(0.5))
    def forward(self, x):
        q, k, v = (each(x).flatten(2).mT for each in (self.q, self.k, self.v))
        return x + self.gamma{scaled} * ((q @ k.mT).softmax(-1) @ v).mT.reshape(x.shape)
"""
CASES = {
    "image": (IMAGE.format(scaled=""), IMAGE.format(scaled=" / len(x)")),
    "conditioned": (CONDITIONED.format(row="[:, None]"), CONDITIONED.format(row="[:, None] * len(x)")),
    "pooled": (POOLED.format(scaled=""), POOLED.format(scaled=" / len(x)")),
    "settings": (SETTINGS.format(given="x"), SETTINGS.format(given="x.cumsum(1) / x.shape[1]")),
    "square": (SQUARE.format(scaled=""), SQUARE.format(scaled=" * len(x) ** 0.5")),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("wrong", [False, True])
def test_what_no_name_states_is_tried(make: Make, name: str, wrong: bool) -> None:
    refused(make, CASES[name][wrong])
    made = candidate("mine.py:f", {}, in_part=True)
    assert [*made.findings] == ["its numbers"]
    (found,) = run(made, dtypes=("float32",))
    assert (found.clause, found.status) == ("modules.as-built", Status.FAIL if wrong else Status.PASS)


BEHIND = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.q, self.kv, self.out = heads, nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)
    def forward(self, x, mask, context):
        k, v = (split(each, self.h) for each in self.kv(context).chunk(2, -1))
        y = attend(split(self.q(x), self.h), k, v, None if mask is None else mask[{row}, None])[0]
        return self.out(y.transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("row", "wrong"), [(":", False), (":1", True)])
def test_an_input_behind_a_mask_is_an_input(make: Make, row: str, wrong: bool) -> None:
    made = make(BEHIND.format(row=row))
    assert {Feature.CROSS, Feature.BOOL_MASK} <= made.claims.features
    found = run(made, ("masks.bool", "masks.padding"), ("float32",))
    assert (Status.FAIL in {each.status for each in found}) is wrong


OBJECT = """
class Cache(nn.Module):
    def update(self, k, v):
        return k, v

class f(nn.Module):
    def __init__(self, embed_dim, num_heads, kv_cache: Cache | None = None):
        super().__init__()
        self.h, self.kv_cache = num_heads, kv_cache
        self.qkv, self.out = nn.Linear(embed_dim, 3 * embed_dim), nn.Linear(embed_dim, embed_dim)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        y = attend(q, k, v, causal=self.kv_cache is None)[0]
        return self.out(y.transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("option", "used"), [("kv_cache: Cache | None = None", "kv_cache is None"), ("is_causal: bool = True", "is_causal")]
)
def test_an_option_that_makes_what_is_always_hidden_seen_is_not_turned(make: Make, option: str, used: str) -> None:
    text = OBJECT.replace("kv_cache: Cache | None = None", option).replace("self.kv_cache is None", f"self.{used}")
    text = text.replace("self.kv_cache = num_heads, kv_cache", f"self.{used.split()[0]} = num_heads, {used.split()[0]}")
    found = run(make(text), ("modules.as-built",), ("float32",))
    assert Status.FAIL not in {each.status for each in found}


NORMED = """
class AdaptiveLayerNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layernorm, self.shift = nn.LayerNorm(dim), nn.Linear(dim, dim)
    def forward(self, x, condition):
        return self.layernorm(x) + self.shift(condition)

class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.norm = heads, AdaptiveLayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(self.norm(x, x.mean(1, keepdim=True))).chunk(3, -1))
        return self.out(attend(q, k, v{scale})[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("scale", "wrong"), [("", False), (", scale=(self.h * q.shape[-1]) ** -0.5", True)])
def test_a_norm_with_a_condition_is_taken_out_whole(make: Make, scale: str, wrong: bool) -> None:
    made = make(NORMED.format(scale=scale))
    assert Feature.PROJECTIONS in made.claims.features
    (found,) = run(made, ("scores.dot-product",), ("float32",))
    assert found.status is (Status.FAIL if wrong else Status.PASS)


ACROSS = """
class Inner(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        return self.out(attend(q, k, v)[0].transpose(1, 2).flatten(2))

class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(dim), Inner(dim, heads)
    def forward(self, x):
        return x + self.inner(self.norm(x.transpose(0, 1))).transpose(0, 1)
"""


def test_a_layer_in_another_layout_than_the_whole_is_not_taken_for_its_answer(make: Make) -> None:
    assert "another layout" in refused(make, ACROSS)
    assert make(ACROSS.replace(".transpose(0, 1)", ""), "Inner").claims.features


PAIRS = """
class f(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.h, self.qkv, self.proj = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.rel = nn.Parameter(torch.zeros(num_heads, 9))
    def forward(self, x, {name}=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        at = torch.arange(x.shape[1])
        bias = self.rel[:, (at[:, None] - at).clamp(-4, 4) + 4]
        if {name} is not None:
            pair = {name}.expand(len(x), self.h, -1, -1){copied}
            bias = pair.add_(bias)
        return self.proj(((q @ k.mT / q.shape[-1] ** 0.5 + bias).softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize("name", ["attn_bias", "prev_scores"])
@pytest.mark.parametrize(("copied", "wrong"), [(".clone()", False), (".contiguous()", True)])
def test_scores_of_each_head_stay_as_they_are(make: Make, name: str, copied: str, wrong: bool) -> None:
    """`contiguous` copies nothing where nothing is broadcast."""
    made = make(PAIRS.format(name=name, copied=copied))
    assert bool(failing(made, "modules.as-built")) is wrong
