"""Padding that a finite number hides where causality does so by infinity: what True means is not read the other way."""

import pytest

from attention_conformance.spec.conventions import PaddedTokens, Polarity
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, assert_conforms, failing
from attention_conformance.tests.selftest.discovery.test_given_forms import text_of

LATER = "s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)"
ADDED = "s = s + torch.full(s.shape[-2:], -torch.inf).triu(1)"
FILLED = "s = s if mask is None else s.masked_fill(mask[:, None, None] == 0, {})"
LESS = "s = s if mask is None else s + (1.0 - mask[:, None, None].to(s)) * {}"
QUERIES = "s = s if mask is None else s.masked_fill(~(mask[:, None] & mask[:, :, None]).bool()[:, None], {})"
OPPOSITE = "s = s if mask is None else s.masked_fill(mask[:, None, None] == 1, {})"
OF_MODULES = {
    "filled after causality": (LATER, FILLED.format("-1e9")),
    "filled before causality": (FILLED.format("torch.finfo(s.dtype).min"), LATER),
    "added after causality": (ADDED, LESS.format("-1e4")),
    "added before causality": (LESS.format("-65504.0"), ADDED),
}


def module(*steps: str, doc: str = "") -> str:
    text = text_of({"inputs": "x, mask=None", "masked": "\n        ".join(steps)})
    return text.replace("nn.Module):\n", f'nn.Module):\n    """{doc}"""\n\n', 1)


@pytest.mark.parametrize("steps", OF_MODULES.values(), ids=OF_MODULES)
def test_the_padding_of_a_module_that_is_always_causal(make: Make, steps: tuple[str, str]) -> None:
    made = make(module(*steps))
    assert made.claims.premises.causal
    assert made.claims.conventions.bool_mask is Polarity.MAY_ATTEND
    assert made.claims.conventions.padded_tokens is not PaddedTokens.UNSPECIFIED
    assert not failing(made, "masks.key-padding")


@pytest.mark.parametrize("steps", [(LATER, QUERIES.format("-1e9")), (QUERIES.format("-1e9"), LATER)])
def test_padding_that_hides_queries_too(make: Make, steps: tuple[str, str]) -> None:
    made = make(module(*steps))
    assert made.claims.conventions.bool_mask is Polarity.MAY_ATTEND
    assert not failing(made, "masks.key-padding")


@pytest.mark.parametrize("steps", [(LATER, OPPOSITE.format("-1e9")), (OPPOSITE.format("-1e9"), LATER)])
@pytest.mark.parametrize(("doc", "wrong"), [("mask: (B, L), 1 for real tokens, 0 for padding.", True), ("", False)])
def test_the_opposite_is_one_of_what_is_stated_alone(make: Make, steps: tuple[str, str], doc: str, wrong: bool) -> None:
    made = make(module(*steps, doc=doc))
    assert made.claims.conventions.bool_mask is (Polarity.MAY_ATTEND if wrong else Polarity.MASKED_OUT)
    assert bool(failing(made, "masks.key-padding")) is wrong


@pytest.mark.parametrize("slip", [".roll(1, 0)", ".roll(1, 1)"])
def test_padding_of_other_keys_is_judged(make: Make, slip: str) -> None:
    made = make(module(LATER, FILLED.format("-1e9").replace("mask[:", f"mask{slip}[:")))
    assert Feature.KEY_PADDING in made.claims
    assert failing(made, "masks.key-padding")


OF_TENSORS = """
def f(q, k, v, {name}=None{flag}):
    s, mask = q @ k.mT / q.shape[-1] ** 0.5, {name}
    {first}
    {then}
    return s.softmax(-1) @ v
"""
FLAG = f"s = {LATER[4:]} if causal else s"


@pytest.mark.parametrize("name", ["mask", "key_padding_mask", "attention_mask"])
@pytest.mark.parametrize("steps", [(LATER, FILLED.format("-1e9")), (LESS.format("-1e4"), ADDED)])
def test_the_padding_of_a_function_that_is_always_causal(make: Make, name: str, steps: tuple[str, str]) -> None:
    made = make(OF_TENSORS.format(name=name, flag="", first=steps[0], then=steps[1]))
    assert made.claims.conventions.bool_mask is Polarity.MAY_ATTEND
    assert Feature.KEY_PADDING in made.claims
    assert_conforms(made)


@pytest.mark.parametrize("name", ["mask", "key_padding_mask"])
def test_the_padding_of_a_function_with_a_flag(make: Make, name: str) -> None:
    steps = {"first": FLAG, "then": FILLED.format("-1e9")}
    made = make(OF_TENSORS.format(name=name, flag=", causal=False", **steps))
    assert made.claims.conventions.bool_mask is Polarity.MAY_ATTEND
    assert not failing(made, "masks.key-padding", "causal.*")


OF_ARRAYS = """
{imported}
def f(q, k, v, mask=None):
    s = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
    s = np.where(np.tri(*s.shape[-2:], dtype=bool), s, -np.inf)
    s = s if mask is None else np.where(mask[:, None, None] == {hidden}, {fill}, s)
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v
"""


@pytest.mark.parametrize(("hidden", "means"), [("0", Polarity.MAY_ATTEND), ("1", Polarity.MASKED_OUT)])
@pytest.mark.parametrize("imported", ["", "import jax.numpy as np"], ids=["NumPy", "JAX"])
def test_the_padding_of_other_arrays(make: Make, imported: str, hidden: str, means: Polarity) -> None:
    if imported:
        pytest.importorskip("jax")
    made = make(OF_ARRAYS.format(imported=imported, hidden=hidden, fill="-1e9"))
    assert made.claims.conventions.bool_mask is means
    assert Feature.KEY_PADDING in made.claims
    assert not failing(made, "masks.key-padding")


BY_ONE = "s = s if mask is None else s.masked_fill(mask == {hidden}, {fill})"
SHOWS, HIDES = "mask: 1 for keys to attend to, 0 for padding.", "mask: 1 for padding, 0 for keys to attend to."


@pytest.mark.parametrize(("doc", "means"), [(SHOWS, Polarity.MAY_ATTEND), (HIDES, Polarity.MASKED_OUT)])
@pytest.mark.parametrize("of_module", [False, True])
def test_what_is_stated_counts_where_no_meaning_is_seen(make: Make, doc: str, means: Polarity, of_module: bool) -> None:
    slip = BY_ONE.format(hidden=int(means is Polarity.MASKED_OUT), fill=0.0)
    function = OF_TENSORS.replace("{flag}):\n", f'{{flag}}):\n    """{doc}"""\n')
    text = module(slip, doc=doc) if of_module else function.format(name="mask", flag="", first=slip, then="")
    made = make(text)
    assert made.claims.conventions.bool_mask is means
    assert "masks.bool" in failing(made, "masks.bool")
