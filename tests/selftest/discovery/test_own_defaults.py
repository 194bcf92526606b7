"""Numbers that functions have by default, of a cap, a window, a scale or a pattern: their defaults, and no mistakes."""

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

CAPPED = """
def f(query, key, value, softcap{default}, scale=None):
    s = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    return ({capped}).softmax(-1) @ value
"""
CAP = "softcap * torch.tanh(s / softcap)"


@pytest.mark.parametrize("default", ["", "=50.0"])
@pytest.mark.parametrize(("capped", "wrong"), [(CAP, False), (CAP.replace("s / ", "s.abs() / "), True)])
def test_a_cap_that_is_needed_or_there_by_default(make: Make, default: str, capped: str, wrong: bool) -> None:
    made = make(CAPPED.format(default=default, capped=capped))
    assert Feature.SOFTCAP in made.claims
    assert bool(failing(made, "scores.dot-product", "softcap.*", "numerics.bound")) is wrong


@pytest.mark.parametrize(("root", "wrong"), [("scale", False), ("scale ** 2", True)])
def test_a_scale_that_is_a_number_by_default(make: Make, root: str, wrong: bool) -> None:
    made = make(f"def f(q, k, v, scale=1.0):\n    return (q @ k.mT * {root}).softmax(-1) @ v")
    assert any("given 1 / sqrt(d_k) as 'scale'" in each for each in made.stated)
    assert bool(failing(made, "scores.dot-product", "scores.scale-explicit")) is wrong


WINDOW_BY_DEFAULT = """
def f(q, k, v, window=8):
    i, j = torch.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2], torch.arange(k.shape[-2])
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill((j > i) | ({hidden}), -torch.inf)
    return s.softmax(-1) @ v
"""


@pytest.mark.parametrize(("hidden", "known"), [("j <= i - window", True), ("(j <= i - window) & (i % 2 > 0)", False)])
def test_a_window_that_is_a_number_by_default(make: Make, hidden: str, known: bool) -> None:
    made = make(WINDOW_BY_DEFAULT.format(hidden=hidden))
    assert (Feature.WINDOW in made.claims) is (not made.findings) is known
    assert not failing(made, "window.*", "scores.dot-product", "numerics.bound")


PAIR_BY_DEFAULT = """
def f(q, k, v, window_size=(8, 0)):
    ahead = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None] - (k.shape[-2] - q.shape[-2])
    s = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill((ahead > {right}) | (ahead < -window_size[0]), -torch.inf)
    return s.softmax(-1) @ v
"""


@pytest.mark.parametrize(("right", "wrong"), [("window_size[1]", False), ("window_size[1] + 1", True)])
def test_a_pair_that_is_the_window_by_default(make: Make, right: str, wrong: bool) -> None:
    made = make(PAIR_BY_DEFAULT.format(right=right))
    assert Feature.WINDOW in made.claims
    assert bool(failing(made, "window.*", "scores.dot-product", "numerics.bound")) is wrong


DIVIDED = "def f(q, k, v, temperature{default}):\n    return (q @ k.mT / {by}).softmax(-1) @ v"


@pytest.mark.parametrize("default", ["", "=8.0"])
@pytest.mark.parametrize(
    ("by", "wrong"),
    [("temperature", False), ("temperature / q.shape[-1] ** 0.5", False), ("(temperature + 1)", True)],
)
def test_what_always_divides_scores(make: Make, default: str, by: str, wrong: bool) -> None:
    made = make(DIVIDED.format(default=default, by=by))
    assert bool(failing(made, "scores.dot-product", "numerics.bound")) is wrong


PREFIX = """
def f(q, k, v, {name}=4):
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    seen[:, :{name}] = True
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
"""


@pytest.mark.parametrize(("name", "wrong"), [("prefix_len", False), ("block_size", True)])
def test_a_number_that_shows_more_keys_by_default(make: Make, name: str, wrong: bool) -> None:
    made = make(PREFIX.format(name=name))
    assert (name in made.findings) is wrong
    assert any(name in way for way in made.alternatives) is not wrong  # judged by prefixes that it is given
    assert bool(failing(made, "causal.no-future", "heads.independent", "scores.dot-product")) is wrong
