"""Functions that take gains of norms, or biases of distances, under names of their own."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing

NORMED = """
def norm(x, gain):
    return x * torch.rsqrt(x.square().mean({axes}, keepdim=True) + 1e-6) * gain

def f(q, k, v, {taken}, is_causal=False, scale=None):
    {body}
    return attend(q, k, v, causal=is_causal, scale=scale)[0]
"""
NEEDED = "q, k = norm(q, {0}), norm(k, {1})"
OPTIONAL = "if {0} is not None: q, k = norm(q, {0}), norm(k, {1})"
NAMES = [("q_weight", "k_weight"), ("query_gain", "key_gain"), ("q_norm_w", "k_norm_w")]


def text_of(names: tuple[str, str], needed: bool, axes: str = "-1") -> str:
    taken = ", ".join(names) if needed else ", ".join(f"{name}=None" for name in names)
    return NORMED.format(axes=axes, taken=taken, body=(NEEDED if needed else OPTIONAL).format(*names))


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("needed", [False, True])
def test_gains_are_judged_whatever_their_names(make: Make, names: tuple[str, str], needed: bool) -> None:
    made = make(text_of(names, needed))
    assert Feature.QK_NORM in made.claims or made.claims.premises.qk_norm
    assert "gains of norms" in made.about
    assert_conforms(made)


@pytest.mark.parametrize("needed", [False, True])
@pytest.mark.parametrize("wrong", ["axes", "gain"])
def test_wrong_norms_fail(make: Make, needed: bool, wrong: str) -> None:
    text = text_of(NAMES[0], needed, "(-2, -1)" if wrong == "axes" else "-1")
    same = text.replace("norm(k, k_weight)", "norm(k, q_weight)")
    assert failing(make(same if wrong == "gain" else text))


def test_weights_of_projections_are_no_gains(make: Make) -> None:
    taken = "q_weight=None, k_weight=None, v_weight=None"
    made = make(f"def f(q, k, v, {taken}):\n    return attend(q, k, v)[0]\n")
    assert "gains of norms" not in made.about


BIASED = """
def f(q, k, v, rel_bias{default}, *, is_causal=False):
    R = (rel_bias.shape[{axis}] - 1) // 2
    ahead = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
    s = q @ k.mT * q.shape[-1] ** -0.5 + rel_bias{turned}[:, ahead.clamp(-R, {most}) + R]
    if is_causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return s.softmax(-1) @ v
"""


@pytest.mark.parametrize(("axis", "turned"), [(1, ""), (0, ".T")])
@pytest.mark.parametrize("most", ["R", "R - 1"])
def test_biases_of_distances_are_judged(make: Make, axis: int, turned: str, most: str) -> None:
    made = make(BIASED.format(default="", axis=axis, turned=turned, most=most))
    assert Feature.RELATIVE_BIAS in made.claims
    assert bool(failing(made, "positions.relative-bias", "positions.relative-gradient")) is (most != "R")
