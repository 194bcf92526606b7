"""Generators of random numbers that functions take: keys of JAX, generators of NumPy and torch, seeds."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

from attention_conformance.implementations.discovery.vocabulary import words_of
from attention_conformance.spec.optional import optional

torch = optional("torch")
NAMES = {"rng", "rngs", "prng", "prngkey", "generator", "seed"}
"""Words in the names of parameters that take one."""
OF_KEYS, RANDOM = {"key"}, {"dropout", "drop", "random", "rng", "prng"}
"""Words that name one together: other keys are attended to."""


def _key(seed: int) -> Any:
    jax = sys.modules["jax"]
    with jax.ensure_compile_time_eval():  # a constant of the program that a call is compiled to
        return jax.random.PRNGKey(seed)


def _torchs(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


Maker: TypeAlias = Callable[[int], Any]
MAKERS: tuple[Maker, ...] = (_key, _torchs, np.random.default_rng, np.random.RandomState, int)
"""Each makes one of a seed."""


def generator_in(parameters: Iterable[inspect.Parameter]) -> str:
    """The parameter that takes a generator by its name; empty where there is none, or several."""
    named = [p.name for p in parameters if _is_generator(words_of(p.name))]
    return named[0] if len(named) == 1 else ""


def _is_generator(words: set[str]) -> bool:
    return bool(words & NAMES or (words & OF_KEYS and words & RANDOM))


def drawn(maker: Maker) -> Any:
    """One whose seed is the next number of NumPy's own generator, which a case seeds."""
    return maker(int(np.random.randint(2**31)))
