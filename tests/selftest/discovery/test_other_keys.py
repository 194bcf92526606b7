"""Functions whose keys have other axes than their queries: found by calls, and judged."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing
from attention_conformance.tests.selftest.thorough import thorough

SHARED = """
def f(q, k, v):
    s = torch.einsum("{q},{k}->bhij", q, k) * {scale}
    return torch.einsum("bhij,{k}->{q}", s.softmax(-1), v).contiguous()
"""
AXES = {"heads before components": ("bihd", "bjd"), "tokens first": ("ibhd", "jbd")}
GROUPS = """
def f(query, key, value, attn_mask=None, *, attn_logits_soft_cap=None):
    s = {library}.einsum("{q},{k}->bkgij", query * query.shape[-1] ** -0.5, key)
    cap = attn_logits_soft_cap
    {first}
    {second}
    return {library}.einsum("bkgij,{k}->{q}", {softmax}, value)
"""
HIDE = "s = s if attn_mask is None else {library}.where(attn_mask[:, None, None], s, -1e30)"
CAP = "s = s if cap is None else {library}.tanh(s / cap) * cap"
TORCH = {"library": "torch", "softmax": "s.softmax(-1)"}
JAX = {"library": "jax.numpy", "softmax": "jax.nn.softmax(s, axis=-1)"}
OF_GROUPS = {"tokens first": ("bikgd", "bjkd"), "heads first": ("bkgid", "bkjd"), "groups first": ("bigkd", "bjkd")}


def grouped(axes: tuple[str, str], words: dict[str, str], wrong: bool) -> str:
    steps = [each.format(**words) for each in ((HIDE, CAP) if wrong else (CAP, HIDE))]
    made = GROUPS.format(q=axes[0], k=axes[1], first=steps[0], second=steps[1], **words)
    return f"import jax\n{made}" if words is JAX else made


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_one_head_of_keys_without_an_axis(make: Make, axes: tuple[str, str]) -> None:
    made = make(SHARED.format(q=axes[0], k=axes[1], scale="q.shape[-1] ** -0.5"))
    assert "one head for all queries" in made.about
    assert {Feature.GROUPED, Feature.CROSS, Feature.GRADIENTS} <= made.claims.features
    assert_conforms(made)


def test_a_wrong_scale_is_caught(make: Make) -> None:
    text = SHARED.format(q="bihd", k="bjd", scale="k.shape[1] ** -0.5")
    assert failing(make(text), "scores.scale-default") == {"scores.scale-default"}


@pytest.mark.parametrize("axes", OF_GROUPS.values(), ids=OF_GROUPS)
@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_groups_in_an_axis_of_their_own(make: Make, axes: tuple[str, str], wrong: bool) -> None:
    made = make(grouped(axes, TORCH, wrong))
    assert "each for G queries" in made.about
    assert {Feature.GROUPED, Feature.BOOL_MASK, Feature.SOFTCAP} <= made.claims.features
    expected = {"softcap.mask"} if wrong else set()
    assert failing(made, "softcap.mask", "grouped.order") == expected


@thorough
def test_groups_in_jax(make: Make) -> None:
    made = make(grouped(OF_GROUPS["tokens first"], JAX, True))
    assert failing(made, "softcap.mask", "grouped.order") == {"softcap.mask"}


def test_numbers_are_not_promised_where_a_mask_is_documented_as_boolean(make: Make) -> None:
    text = grouped(OF_GROUPS["tokens first"], TORCH, False).replace("None, None], s", "None, None].bool(), s")
    words = '"""Queries (B, L, K, G, d), keys (B, L, K, d), mask (B, Lq, Lk) bool, True = seen."""'
    made = make(text.replace("soft_cap=None):\n", f"soft_cap=None):\n    {words}\n"))
    assert Feature.BOOL_MASK in made.claims
    assert Feature.FLOAT_MASK not in made.claims


SINKS = """
def f({names}, {scale}, sliding_window=0, softcap=0.0):
    n, sinks = {query}.shape[{tokens}], {sinks}
    s = torch.einsum("{q},{k}->{s}", {query}, {key}) * {scale}
    s = softcap * torch.tanh(s / softcap) if softcap > 0 else s
    behind = torch.arange(n)[:, None] - torch.arange(n)
    hidden = (behind < 0) | ((behind >= sliding_window) if sliding_window > 0 else behind < 0)
    column = sinks.expand(*s.shape[:-1], 1)
    w = torch.cat([s.masked_fill(hidden, -torch.inf), column], -1).softmax(-1)[..., :-1]
    return torch.einsum("{s},{k}->{q}", w, {value}).flatten({tokens} + 1)
"""
SAMPLES = {"q": "bikgd", "k": "bjkd", "s": "bkgij", "tokens": "1"}
NO_SAMPLES = {"q": "ikgd", "k": "jkd", "s": "kgij", "tokens": "0"}
CAPITALS = {"names": "Q, K, V, S", "scale": "sm_scale", "query": "Q", "key": "K", "value": "V"}
SMALL = {"names": "q, k, v, sink_logits", "scale": "scaling", "query": "q", "key": "k", "value": "v"}
OF_GROUPS_OF_SINKS = {"two axes": "{name}[..., None, None]", "flat": "{name}.view({groups}, 1, 1)"}
WRONG = {
    "groups in turn": "{name}.reshape(-1).view(*{groups_of}[::-1], 1, 1).transpose(0, 1)",
    "capped": "(softcap * torch.tanh({two} / softcap) if softcap > 0 else {two})",
    "scaled": "({two} * {scale})",
}


def with_sinks(axes: dict[str, str], names: dict[str, str], sinks: str) -> str:
    name = names["names"].split(", ")[-1]
    groups_of = f"{names['query']}.shape[-3:-1]"
    two = f"{name}.reshape(*{groups_of}, 1, 1)"
    sinks = sinks.format(name=name, groups=f"*{groups_of}", groups_of=groups_of, two=two, scale=names["scale"])
    return SINKS.format(**axes, **names, sinks=sinks)


@pytest.mark.parametrize("axes", [SAMPLES, NO_SAMPLES], ids=["samples", "one sample"])
@pytest.mark.parametrize("names", [CAPITALS, SMALL], ids=["capitals", "small"])
@pytest.mark.parametrize("sinks", OF_GROUPS_OF_SINKS.values(), ids=OF_GROUPS_OF_SINKS)
def test_groups_with_sinks(make: Make, axes: dict[str, str], names: dict[str, str], sinks: str) -> None:
    made = make(with_sinks(axes, names, sinks))
    assert {Feature.SINKS, Feature.WINDOW, Feature.SOFTCAP, Feature.GROUPED} <= made.claims.features
    assert not failing(made, "sinks.*", "window.*", "softcap.*", "grouped.*", "scores.*")
    assert_conforms(made)


@pytest.mark.parametrize("axes", [SAMPLES, NO_SAMPLES], ids=["samples", "one sample"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_sinks_of_groups(make: Make, axes: dict[str, str], wrong: str) -> None:
    made = make(with_sinks(axes, CAPITALS, WRONG[wrong]))
    assert failing(made, "sinks.*", "grouped.*", dtype="float64")
