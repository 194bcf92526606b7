"""Right code of uncommon forms: what once was read as another form, and accused of that."""

from pathlib import Path

import pytest

from attention_conformance.implementations.discovery.candidates import candidate
from attention_conformance.spec.conventions import Alignment
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.discovery.making import START, Make, assert_conforms, write

ROTATED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def rope(self, x):
        a, b = x.chunk(2, -1)
        turns = 10000.0 ** -(torch.arange(a.shape[-1]) / a.shape[-1])
        turns = torch.arange(x.shape[2])[:, None] * turns
        return torch.cat([a * turns.cos() - b * turns.sin(), b * turns.cos() + a * turns.sin()], -1)
    def forward(self, x):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        q, k = self.rope(q), self.rope(k)
        return self.out(attend({query}, {key}, {value}, causal=True)[0].transpose(1, 2).flatten(2))
"""


def failing(make: Make, text: str, *clauses: str) -> list[str]:
    found = run(make(text), clauses, ("float32",))
    return [each.clause for each in found if each.status is Status.FAIL]


@pytest.mark.parametrize(
    ("query", "key", "value", "wrong"),
    [
        ("q * (1.0 + q.norm(dim=-1, keepdim=True))", "F.normalize(k, dim=-1)", "v", False),
        (
            "q * (1.0 + q.norm(dim=-1, keepdim=True))",
            "F.normalize(k, dim=-1)",
            "v * (0.5 if self.training else 1.0)",
            True,
        ),
    ],
)
def test_scores_of_an_unknown_rule_are_judged_by_relations(
    tmp_path: Path, query: str, key: str, value: str, wrong: bool
) -> None:
    file = write(tmp_path, "unknown.py", START + ROTATED.format(query=query, key=key, value=value))
    made = candidate(f"{file}:f", {}, in_part=True)
    assert "its scores are none that the suite knows" in made.findings["its numbers"]
    (found,) = run(made, ("modules.as-built",), ("float32",))
    assert found.status is (Status.FAIL if wrong else Status.PASS)


CACHED = """
def f(q, k, v, attn_mask=None, past_key=None, past_value=None, is_causal=0):
    past = 0
    if past_key is not None:
        past = past_key.shape[2]
        k, v = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
    s = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    if attn_mask is not None:
        s = np.where(attn_mask, s, -np.inf) if attn_mask.dtype == bool else s + attn_mask
    if is_causal:
        s = np.where(np.arange(s.shape[-1]) > np.arange(s.shape[-2])[:, None] + past, -np.inf, s)
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)) @ v, k, v
"""


def test_a_past_that_may_be_left_out_makes_no_serving_kernel(make: Make) -> None:
    made = make(CACHED)
    assert "serving kernel" not in made.about
    assert {Feature.CAUSAL, Feature.FLOAT_MASK} <= made.claims.features
    assert not failing(make, CACHED, "heads.*", "causal.*", "masks.*")


LENGTHS = """
def f(q, k, v, causal=False, key_lengths=None):
    n = torch.full((len(q),), k.shape[2]) if key_lengths is None else key_lengths
    i, j = torch.arange(q.shape[2]) + ({first})[:, None], torch.arange(k.shape[2])
    hidden = (j >= n[:, None])[:, None, :].expand(-1, q.shape[2], -1)
    hidden = hidden | (j > i[..., None]) if causal else hidden
    return (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(hidden[:, None], -torch.inf).softmax(-1).nan_to_num(0.0) @ v
"""


@pytest.mark.parametrize(
    ("first", "corner"),
    [
        ("n - q.shape[2]", Alignment.BOTTOM_RIGHT_REAL),
        ("n * 0 + k.shape[2] - q.shape[2]", Alignment.BOTTOM_RIGHT),
        ("n * 0", Alignment.TOP_LEFT),
    ],
)
def test_lengths_may_move_the_corner(make: Make, first: str, corner: Alignment) -> None:
    text = LENGTHS.format(first=first)
    assert make(text).claims.conventions.causal_alignment is corner
    assert not failing(make, text, "causal.*", "masks.*", "relations.alternatives")


def test_what_padded_tokens_get_is_not_judged(make: Make) -> None:
    made = make(
        "def f(q, k, v, attention_mask=None):\n"
        "    if attention_mask is None: return attend(q, k, v)[0]\n"
        "    padded = attention_mask < 0\n"
        "    o = attend(q, k, v, ~padded[:, None, None])[0]\n"
        "    return o.masked_fill(padded[:, None, :, None], 0.0)\n"
    )
    assert "attention_mask" in made.findings
    assert not made.claims.features & {Feature.BOOL_MASK, Feature.FLOAT_MASK, Feature.KEY_PADDING}
    assert_conforms(made)


def test_a_window_that_has_to_be_given_is_wide_enough_for_one_head(make: Make) -> None:
    text = """
def f(query, key, value, one_sided_window):
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill((i - j).abs() > one_sided_window, -torch.inf)
    return (s.softmax(-1) @ v).transpose(1, 2)
"""
    assert not failing(make, text, "numerics.exact", "window.*")


STACKED = """
class f(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.qkv, self.out = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, past=None):
        q, k, v = (split(each, self.h) for each in self.qkv(x).chunk(3, -1))
        if past is not None:
            k, v = torch.cat([past.unbind(1)[0], k], 2), torch.cat([past.unbind(1)[1], v], 2)
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu({first})
        s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf)
        return self.out((s.softmax(-1) @ v).transpose(1, 2).flatten(2)), torch.stack([k, v], 1)
"""


@pytest.mark.parametrize(("first", "wrong"), [("k.shape[2] - q.shape[2] + 1", False), ("1", True)])
def test_keys_and_values_may_be_stacked_behind_the_samples(make: Make, first: str, wrong: bool) -> None:
    text = STACKED.format(first=first)
    assert Feature.AS_BUILT in make(text).claims
    assert bool(failing(make, text, "modules.as-built", "relations.alternatives")) is wrong


KEPT = """
def f(q, k_cache, v_cache, cache_seqlens=None, softmax_scale=None, causal=True):
    q, k, v = (x.transpose(1, 2) for x in (q, k_cache, v_cache))
    n = torch.full((len(q),), k.shape[2]) if cache_seqlens is None else cache_seqlens
    j, last = torch.arange(k.shape[2]), (n[:, None] - q.shape[2] + torch.arange(q.shape[2]))[:, None, :, None]
    hidden = (j >= n[:, None, None, None]) | (j > last) if causal else j >= n[:, None, None, None]
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return (q @ k.mT * scale).masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0).matmul(v).transpose(1, 2)
"""


def test_a_flag_that_is_on_by_default_is_switched_off(make: Make) -> None:
    assert not failing(make, KEPT, "values.*", "causal.*", "relations.*")
