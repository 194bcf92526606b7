"""Other calls of modules: after a flag, without weights, with other widths, with a mask in the place of their own."""

from pathlib import Path

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import START, Make, failing, write

KEPT = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out, self.kept = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), None
    def reset_cache(self):
        self.kept = None
    def forward(self, x, use_cache=False):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        if {used}:
            k, v = torch.cat([self.kept[0], k], 2), torch.cat([self.kept[1], v], 2)
        if use_cache:
            self.kept = k.detach(), v.detach()
        hidden = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("used", "wrong"), [("use_cache and self.kept is not None", False), ("self.kept is not None", True)]
)
def test_a_cache_that_is_not_used_leaves_nothing(make: Make, used: str, wrong: bool) -> None:
    assert bool(failing(make(KEPT.format(used=used)), "relations.alternatives")) is wrong


TWO_PATHS = """
class f(nn.Module):
    def __init__(self, embed_dim, num_heads, dropout=0.0, kdim=None, vdim=None):
        super().__init__()
        {checked}
        self.h, self.rate = num_heads, dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj, self.v_proj = nn.Linear(kdim or embed_dim, embed_dim), nn.Linear({width}, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
    def forward(self, query, key, value, key_padding_mask=None, need_weights=True, attn_mask=None):
        '''key_padding_mask: booleans, True hides a key{documented}'''
        q, k, v = (split(f(x), self.h) for f, x in ((self.q_proj, query), (self.k_proj, key), (self.v_proj, value)))
        mask = torch.zeros(len(q), 1, q.shape[2], k.shape[2], dtype=q.dtype)
        if key_padding_mask is not None:
            mask = mask.masked_fill(key_padding_mask{hidden}[:, None, None, :], -torch.inf)
        if attn_mask is not None:
            own = attn_mask if attn_mask.ndim == 2 else attn_mask.unflatten(0, (len(q), self.h))
            mask = mask.masked_fill(own, -torch.inf) if own.dtype is torch.bool else mask + own
        if need_weights:
            p = F.dropout((q @ k.mT / q.shape[-1] ** 0.5 + mask).softmax(-1), self.rate, self.training)
            return self.out_proj((p @ v).transpose(1, 2).flatten(2)), p.mean(1)
        y = F.scaled_dot_product_attention(q, k, v, mask, dropout_p={rate})
        return self.out_proj(y.transpose(1, 2).flatten(2)), None
"""
RIGHT = {
    "checked": "",
    "width": "vdim or embed_dim",
    "documented": ".",
    "hidden": "",
    "rate": "self.rate * self.training",
}
REFUSED = {"checked": "assert kdim is None is vdim, 'one width'", "width": "embed_dim"}
ADDED = {"documented": "; floats are added to its scores.", "hidden": ".bool()"}


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, False),  # rows without keys get NaN with weights, and zeros without
        ({"rate": "self.rate"}, True),
        (REFUSED, False),
        (ADDED, True),
        ({"hidden": ".bool()"}, False),
    ],
)
def test_a_published_class_of_two_paths(make: Make, changed: dict[str, str], wrong: bool) -> None:
    text = TWO_PATHS.format(**{**RIGHT, **changed})
    clauses = ("relations.alternatives", "conventions.empty-row", "cross-attention.*")
    assert bool(failing(make(text), *clauses)) is wrong


def test_other_widths_that_are_refused_are_not_claimed(make: Make) -> None:
    made = make(TWO_PATHS.format(**{**RIGHT, **REFUSED}))
    assert Feature.INPUT_WIDTHS not in made.claims
    assert "input-widths not claimed: AssertionError: one width" in made.unclaimed
    assert not made.findings


def test_other_widths_that_are_broken_are_stated(make: Make) -> None:
    broken = make(TWO_PATHS.format(**{**RIGHT, "width": "kdim or embed_dim"}))
    assert broken.findings == {"kdim": "not judged: a call with other widths of key and value raises"}


REPLACED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, mask=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        own = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1).to(x.dtype)
        s = q @ k.mT / q.shape[-1] ** 0.5 + {added}
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("added", "wrong"),
    [
        ("(own if mask is None else mask)", False),
        ("(own if mask is None else own + mask)", False),
        ("(own if mask is None else 2.0 * mask)", True),
    ],
)
def test_a_mask_may_take_the_place_of_the_own_triangle(make: Make, added: str, wrong: bool) -> None:
    assert bool(failing(make(REPLACED.format(added=added)), "masks.*", "scores.*", "causal.*")) is wrong


ROTATING = """
class f(nn.Module):
    def __init__(self, dim, heads, rope_theta=10000.0):
        super().__init__()
        self.h, self.qkv, self.out, self.theta = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), rope_theta
    def rotated(self, x):
        a, b = x.chunk(2, -1)
        turns = torch.arange(x.shape[2])[:, None] * self.theta ** -(torch.arange(a.shape[-1]) / {pairs})
        return torch.cat([a * turns.cos() - b * turns.sin(), b * turns.cos() + a * turns.sin()], -1).to(x.dtype)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        return self.out(attend(self.rotated(q), self.rotated(k), v, causal=True)[0].transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(("pairs", "wrong"), [("a.shape[-1]", False), ("x.shape[-1] * 4", True)])
def test_the_base_of_rotations_is_the_stated_one(make: Make, pairs: str, wrong: bool) -> None:
    assert bool(failing(make(ROTATING.format(pairs=pairs)), "scores.*", "softmax.*")) is wrong


LISTED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.q, self.k, self.v = ({kind}(nn.Linear(dim, dim // heads) for _ in range(heads)) for _ in "qkv")
        self.out = nn.Linear(dim, dim)
    def forward(self, q, k, v):
        each = [attend(f(q), g(k), h(v))[0] for f, g, h in zip(self.q, self.k, self.v)]
        return self.out(torch.cat(each, -1))
"""


@pytest.mark.parametrize(("kind", "wrong"), [("nn.ModuleList", False), ("list", True)])
def test_layers_that_are_not_registered_are_accused(tmp_path: Path, kind: str, wrong: bool) -> None:
    file = write(tmp_path, f"{'listed' if wrong else 'registered'}.py", START + LISTED.format(kind=kind))
    made = candidate(f"{file}:f", {}, in_part=True)
    found = run(made, ("modules.as-built", "scores.*"), ("float64",) if wrong else ("float32",))
    assert any(each.status is Status.FAIL for each in found) is wrong


SEEDED = """
class f(nn.Module):
    def __init__(self, dim, heads, attention_probs_dropout_prob=0.1):
        super().__init__()
        self.h, self.qkv, self.rate = heads, nn.Linear(dim, 3 * dim), attention_probs_dropout_prob
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        p = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        if self.training and self.rate:
            {seeded}
            p = F.dropout(p, self.rate)
        return (p @ v).transpose(1, 2).flatten(2)
"""


@pytest.mark.parametrize(("seeded", "wrong"), [("pass", set()), ("torch.manual_seed(3)", {"dropout.seed"})])
def test_dropout_that_draws_the_same_each_time_is_accused(make: Make, seeded: str, wrong: set[str]) -> None:
    assert failing(make(SEEDED.format(seeded=seeded)), "dropout.seed") == wrong


OWN_DRAWS = """
class f(nn.Module):
    def __init__(self, dim, heads, dropout=0.1, seed=0):
        super().__init__()
        self.h, self.qkv, self.rate, self.seed = heads, nn.Linear(dim, 3 * dim), dropout, seed
        self.register_buffer("step", torch.zeros((), dtype=torch.long))
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        p = (q @ k.mT / q.shape[-1] ** {power}).softmax(-1)
        if self.training and self.rate:
            own = torch.Generator().manual_seed(1000 * self.seed + int(self.step))
            self.step += 1
            p = p * (torch.rand(p.shape, generator=own) >= self.rate) / (1 - self.rate)
        return (p @ v).transpose(1, 2).flatten(2)
"""


@pytest.mark.parametrize(("power", "wrong"), [(0.5, False), (0.25, True)])
def test_dropout_that_follows_a_seed_of_the_module_is_named(make: Make, power: float, wrong: bool) -> None:
    made = make(OWN_DRAWS.format(power=power))
    assert "dropout follows it" in made.findings["seed"]
    assert bool(failing(made, "scores.dot-product", "relations.*", "effects.*")) is wrong


HEATED = """
class f(nn.Module):
    def __init__(self, dim, heads, slice_size=None):
        super().__init__()
        self.h, self.qkv, self.slice_size = heads, nn.Linear(dim, 3 * dim), slice_size
        self.heat = {heat}
    def forward(self, x):
        q, k, v = (split(each, self.h).flatten(0, 1) for each in self.qkv(x).chunk(3, -1))
        q, n = q * self.heat, self.slice_size or len(q)
        y = torch.zeros_like(q)
        for at in range(0, {end}, n):
            y[at : at + n] = attend(q[at : at + n], k[at : at + n], v[at : at + n])[0]
        return y.unflatten(0, (len(x), self.h)).transpose(1, 2).flatten(2)
"""


@pytest.mark.parametrize(
    ("heat", "end", "wrong"),
    [
        ("nn.Parameter(torch.ones(1))", "len(q)", False),
        ("nn.Parameter(torch.ones(1))", "len(q) // n * n", True),
        ("torch.ones(1, requires_grad=True)", "len(q)", True),
    ],
)
def test_slices_leave_no_head_out_and_what_is_learnt_is_a_parameter(
    make: Make, heat: str, end: str, wrong: bool
) -> None:
    assert bool(failing(make(HEATED.format(heat=heat, end=end)), "modules.as-built")) is wrong


SHARING = """
class f(nn.Module):
    def __init__(self, dim, num_heads, num_kv_heads):
        super().__init__()
        self.h, self.g, d = num_heads, num_kv_heads, dim // num_heads
        self.q, self.kv, self.out = nn.Linear(dim, dim), nn.Linear(dim, 2 * d * num_kv_heads), nn.Linear(dim, dim)
    def forward(self, x, attention_mask=None):
        q = split(self.q(x), self.h).unflatten(1, (self.g, -1))
        k, v = (split(each, self.g)[:, :, None] for each in self.kv(x).chunk(2, -1))
        s = q @ k.mT / q.shape[-1] ** 0.5
        s = s if attention_mask is None else s + {mask}
        return self.out((s.softmax(-1) @ v).flatten(1, 2).transpose(1, 2).flatten(2))
"""


@pytest.mark.parametrize(
    ("mask", "wrong"),
    [
        ("attention_mask.unsqueeze(2)", False),  # (B, 1, 1, Lq, Lk): no axis of heads is promised
        ("0.5 * attention_mask.unsqueeze(2)", True),
    ],
)
def test_masks_of_each_head_need_not_be_taken_in_groups(make: Make, mask: str, wrong: bool) -> None:
    made = make(SHARING.format(mask=mask))
    assert Feature.GROUPED in made.claims
    verdicts = run(made, ("grouped.*", "masks.*", "scores.*"), ("float32",))
    assert any(each.status is Status.FAIL for each in verdicts) is wrong
