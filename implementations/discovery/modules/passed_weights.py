"""Passed weights: plain classes that make their weights in one method and are passed them in each call, as modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from torch import nn

from attention_conformance.implementations.adapters.jax_programs import called as at_once
from attention_conformance.implementations.adapters.jax_programs import evaluation
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.array_modules import built_once, split_tree
from attention_conformance.implementations.discovery.modules.attempts import OF_A_HEAD
from attention_conformance.implementations.discovery.modules.constructor_names import Size, size_of
from attention_conformance.implementations.discovery.modules.given_weights import WHOLE, flattened, nested, width_in
from attention_conformance.implementations.discovery.modules.held_arrays import (
    SIZES,
    TRAINING,
    framework_of,
    is_random,
    is_weight,
    method_of,
    random_key,
)
from attention_conformance.implementations.discovery.modules.mirrors import Held, mirror_class
from attention_conformance.implementations.discovery.signatures import is_variadic, required, role
from attention_conformance.implementations.discovery.vocabulary import words_of

INITIAL = ("init", "init_params", "init_weights", "initialize", "initialise", "create_params", "make_params", "params")
"""The methods that may make weights, the likelier first."""
PASSED = {*WHOLE, "variables", "weight", "state"}
"""Names of what is passed to a call, before its inputs."""


def passed_weights(kind: type) -> type[nn.Module] | None:
    """A plain class that is passed the weights which it made, as a module; None where it is none of these."""
    name = method_of(kind)
    initial = next((each for each in INITIAL if inspect.isroutine(getattr(kind, each, None))), "")
    if not name or not initial or issubclass(kind, nn.Module):
        return None
    every = _parameters(kind, name)
    if len(every) < 2 or every[0].name.lower() not in PASSED:
        return None
    rest = every[1:]
    own = [p for p in inspect.signature(kind).parameters.values() if not is_variadic(p)]
    shown = [p for p in own if not is_random(p)]
    drawn = [p.name for p in own if p not in shown and required(p)]
    sized = _sizes_inputs(shown, _parameters(kind, initial))
    added = () if sized else (inspect.Parameter(SIZES[0], inspect.Parameter.KEYWORD_ONLY),)
    fixed = {p.name: False for p in rest if p.name in TRAINING and p.default is True}
    sources = [] if any(role(p.name) in ("query", "value") for p in rest) else [p for p in rest if is_random(p)]

    def made(**given: Any) -> Held:
        width = width_in(given) if sized else given.pop(SIZES[0])
        built = kind(**given, **{each: random_key() for each in drawn})
        make = getattr(built, initial)
        several = (safe_call(partial(make, **each)).value for each in _given(_parameters(kind, initial), width))
        arrays, joined = _split(next((each for each in several if each is not None), {}))
        if not arrays:
            raise ValueError(f"its {initial} makes no weights")
        random = {p.name: random_key() for p in sources if required(p)}

        def answer(arrays: Mapping[str, Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
            return getattr(built, name)(joined(arrays), *inputs, **{**fixed, **random, **options})

        framework = framework_of(next(iter(arrays.values())))
        return Held(arrays, answer, framework, evaluation(kind) if framework == "jax" else at_once)

    called = inspect.Signature([p for p in rest if p.name not in fixed and p not in sources])
    once = built_once(made, lambda held: held.framework == "jax")  # others may keep what a call leaves
    return cast("type[nn.Module]", mirror_class(kind, once, inspect.Signature([*shown, *added]), called))


def _parameters(kind: type, name: str) -> list[inspect.Parameter]:
    """Those of a method, without the object or the class itself."""
    written = inspect.getattr_static(kind, name)
    every = [*inspect.signature(getattr(kind, name)).parameters.values()]
    return every if isinstance(written, staticmethod | classmethod) else every[1:]


def _sizes_inputs(own: Sequence[inspect.Parameter], initial: Sequence[inspect.Parameter]) -> bool:
    """Whether its constructor is given the width of inputs: not where all widths may be those of one head.

    That is where they are named so, and what makes the weights is given another one.
    """
    widths = [p.name for p in own if size_of(p.name) is Size.WIDTH and p.default is not None]
    others = any(required(p) and not is_random(p) for p in initial)
    return bool(widths) and not (others and all(words_of(name) & OF_A_HEAD for name in widths))


def _given(parameters: Sequence[inspect.Parameter], width: int) -> Iterator[dict[str, Any]]:
    """What may be given to the method that makes weights: a source of random numbers, a width, an input."""
    needed = [p for p in parameters if not is_variadic(p) and required(p)]
    for source in (random_key, lambda: np.random.default_rng(0), lambda: 0):
        sources = {p.name: source() for p in needed if is_random(p)}
        for rest in (width, np.zeros((1, 2, width), np.float32), np.zeros((2, width), np.float32)):
            yield {**sources, **{p.name: rest for p in needed if p.name not in sources}}


def _split(tree: Any) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], Any]]:
    """The arrays of a tree by path, and what puts others in their places; of NumPy's dictionaries without JAX."""
    flat = flattened(tree) if isinstance(tree, dict) else {}
    if flat and all(isinstance(each, np.ndarray) for each in flat.values()):
        return {path: each for path, each in flat.items() if is_weight(each)}, lambda others: nested({**flat, **others})
    return split_tree(tree)
