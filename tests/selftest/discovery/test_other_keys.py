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
