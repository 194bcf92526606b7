"""Which functions are tried with arrays of JAX: those that may have something of it, as each size takes a program."""

import functools
import types

import numpy as np
import pytest
import torch

from attention_conformance.implementations.discovery.functions.suited import _may_be_of_jax

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
    assert not _may_be_of_jax(made(IN_TORCH))
    assert _may_be_of_jax(made(IN_TORCH, jnp=jax.numpy))
    assert _may_be_of_jax(made(IN_TORCH, softmax=jax.nn.softmax))
    assert _may_be_of_jax(made(LATER))
    assert _may_be_of_jax(made(THROUGH, helper=helper))
    assert _may_be_of_jax(jax.jit(made(THROUGH)))
