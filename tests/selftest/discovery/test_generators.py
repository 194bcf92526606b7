"""Dropout of functions that take a generator of random numbers, a key or a seed: it is judged with one of each call."""

import inspect

import pytest

from attention_conformance.implementations.discovery.functions.generators import generator_in
from attention_conformance.spec.features import Feature
from attention_conformance.tests.selftest.discovery.making import Make, failing

CLAUSES = ("dropout.factors", "dropout.rate", "dropout.seed", "dropout.next-call", "dropout.evaluation", "effects.*")
OF_NUMPY = """
def f(query, key, value, {parameters}):
    s = np.einsum("...qd,...kd->...qk", query, key) / np.sqrt(query.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    if {on}:
        p = p * ({draw} {side} rate) / (1.0 - rate)
    return p @ value
"""
OF_TORCH = """
def f(query, key, value, dropout=0.0, generator=None):
    p = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
    if dropout:
        {more}
        p = p * torch.empty_like(p).bernoulli(1 - dropout, generator=generator) / (1 - dropout)
    return p @ value
"""
OF_JAX = """
import jax

def f(query, key, value, dropout_rng=None, dropout_rate=0.0, broadcast_dropout=False, deterministic=False):
    s = query @ key.swapaxes(-1, -2) / jax.numpy.sqrt(query.shape[-1]).astype(query.dtype)
    p = jax.nn.softmax(s, -1)
    if dropout_rate > 0.0 and not deterministic:
        keep = jax.random.bernoulli(dropout_rng, {kept}, p.shape)
        p = p * keep.astype(p.dtype) / jax.numpy.asarray(1 - dropout_rate, p.dtype)
    return p @ value
"""
WITH_MODE = {"parameters": "rate=0.0, training=True, rng=None", "on": "training and rate > 0"}
WAYS = {
    "a generator": {"draw": "rng.random(p.shape)"},
    "needed": {"parameters": "rng, rate=0.0", "on": "rate > 0", "draw": "rng.uniform(size=p.shape)"},
    "a seed": {"parameters": "rate=0.0, seed=0", "on": "rate", "draw": "np.random.default_rng(seed).random(p.shape)"},
}


def of_numpy(way: str, side: str) -> str:
    text = OF_NUMPY.format(**{**WITH_MODE, **WAYS[way], "side": side})
    return text.replace("rate", "dropout_rate")


@pytest.mark.parametrize("side", [">=", "<"])
@pytest.mark.parametrize("way", WAYS)
def test_dropout_of_numpy_is_judged_with_a_generator(make: Make, way: str, side: str) -> None:
    made = make(of_numpy(way, side))
    assert Feature.DROPOUT in made.claims
    assert failing(made, *CLAUSES, dtype="float64") == (set() if side == ">=" else {"dropout.rate"})


@pytest.mark.parametrize(("more", "wrong"), [("pass", False), ("p = p / dropout", True)])
def test_dropout_of_torch_is_judged_with_a_generator(make: Make, more: str, wrong: bool) -> None:
    made = make(OF_TORCH.format(more=more))
    assert Feature.DROPOUT in made.claims
    assert ("dropout.factors" in failing(made, *CLAUSES)) is wrong


@pytest.mark.parametrize(("kept", "wrong"), [("1 - dropout_rate", False), ("dropout_rate", True)])
def test_dropout_of_jax_is_judged_with_a_key(make: Make, kept: str, wrong: bool) -> None:
    pytest.importorskip("jax", reason="JAX is not installed: pip install '.[jax]'")
    made = make(OF_JAX.format(kept=kept))
    assert {Feature.DROPOUT, Feature.EVALUATION} <= made.claims.features
    assert failing(made, *CLAUSES) == ({"dropout.rate"} if wrong else set())


@pytest.mark.parametrize("shared", ["1, *p.shape[1:]", "*p.shape[:-2], 1, p.shape[-1]"])
def test_a_choice_that_samples_or_queries_share_is_not_judged(make: Make, shared: str) -> None:
    pytest.importorskip("jax", reason="JAX is not installed: pip install '.[jax]'")
    made = make(OF_JAX.format(kept="1 - dropout_rate").replace("p.shape)", f"({shared}))"))
    assert Feature.DROPOUT not in made.claims
    assert not failing(made, "scores.dot-product")


@pytest.mark.parametrize(
    ("name", "generator"),
    [
        ("rng", True),
        ("dropout_rng", True),
        ("dropout_key", True),
        ("prng_key", True),
        ("generator", True),
        ("seed", True),
        ("key", False),
        ("key_padding_mask", False),
        ("dropout_rate", False),
    ],
)
def test_names_of_generators(name: str, generator: bool) -> None:
    parameter = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert bool(generator_in([parameter])) is generator
