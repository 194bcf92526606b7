"""Which arrays functions are tried with: of JAX where they may have something of it, as each size takes a program."""

import functools
import importlib
import types

import numpy as np
import pytest
import torch

from attention_conformance.implementations.discovery.functions.libraries import may_be_of_jax
from attention_conformance.implementations.discovery.targets.absent import Absences
from attention_conformance.tests.selftest.discovery.making import Make, failing

IN_TORCH = "def f(q, k, v): return torch.softmax(q @ k.mT, -1) @ v"
LATER = "def f(q, k, v):\n    import jax\n    return jax.nn.softmax(q @ k.mT) @ v"
THROUGH = "def f(q, k, v): return helper(q, k, v)"


def made(text: str, **named: object) -> object:
    space = {"__name__": "mine", "torch": torch, "np": np, "partial": functools.partial, **named}
    exec(text, space)
    return space["f"]


def test_what_may_be_of_jax() -> None:
    jax = pytest.importorskip("jax")
    helper = types.FunctionType(made(IN_TORCH).__code__, {"__name__": "theirs"})  # type: ignore[attr-defined]
    assert not may_be_of_jax(made(IN_TORCH))
    assert may_be_of_jax(made(IN_TORCH, jnp=jax.numpy))
    assert may_be_of_jax(made(IN_TORCH, softmax=jax.nn.softmax))
    assert may_be_of_jax(made(LATER))
    absent = Absences(["no_jax"]).load(lambda: importlib.import_module("no_jax"), lambda name: False)
    assert not may_be_of_jax(made(IN_TORCH, no_jax=absent, initialised=absent.nn.made))
    assert may_be_of_jax(made(IN_TORCH, no_jax=absent, jnp=jax.numpy))
    assert may_be_of_jax(made(THROUGH, helper=helper))
    assert may_be_of_jax(jax.jit(made(THROUGH)))


IN_NUMPY = """
def f(q, k, v, window_size=(-1, -1), causal=False, softmax_scale=None, softcap=0.0):
    length, keys, width = q.shape[1], k.shape[1], q.shape[-1]
    k, v = (np.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    s = np.einsum("bqhd,bkhd->bhqk", q, k) * (width**-0.5 if softmax_scale is None else softmax_scale)
    s = softcap * np.tanh(s / softcap) if softcap > 0 else s
    left, right = window_size[0], 0 if causal else window_size[1]
    ahead = np.arange(keys) - np.arange(length)[:, None] - (keys - length)
    hidden = ((ahead > right) & (right >= 0)) | ((ahead < -left) & (left {open} 0))
    w = np.where(hidden, -np.inf, s)
    w = np.exp(w - w.max(-1, keepdims=True, initial=-1e30))
    return np.einsum("bhqk,bkhd->bqhd", w / np.maximum(w.sum(-1, keepdims=True), 1e-300), v)
"""


@pytest.mark.parametrize(("open_side", "wrong"), [(">=", False), (">", True)])
def test_a_published_interface_may_be_that_of_numpy_arrays(make: Make, open_side: str, wrong: bool) -> None:
    made = make(IN_NUMPY.format(open=open_side))
    assert bool(failing(made, "scores.*", "window.*", "causal.*", dtype="float64")) is wrong
