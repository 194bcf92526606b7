"""Held arrays: plain classes with weights among their attributes, as modules."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.jax_op import is_jax
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.constructor_names import (
    Size,
    settings_of,
    settings_parameter,
    size_of,
    value_of,
)
from attention_conformance.implementations.discovery.modules.emptying import emptied_by
from attention_conformance.implementations.discovery.modules.given_groups import weights_given
from attention_conformance.implementations.discovery.modules.given_weights import is_given
from attention_conformance.implementations.discovery.modules.mirrors import Held, mirror_class
from attention_conformance.implementations.discovery.modules.own_backward import backward_of
from attention_conformance.implementations.discovery.modules.set_modes import put_in_evaluation
from attention_conformance.implementations.discovery.signatures import is_variadic, required
from attention_conformance.spec.problem import Array

METHODS = (
    "forward",
    "__call__",
    "call",
    "apply",
    "attention",
    "attend",
    "self_attention",
    "compute",
    "compute_attention",
)
"""The methods that may be the call of a class, the likelier first."""
TRAINING = ("train", "training", "is_training", "is_train")
"""Names of flags of training, in which numbers are drawn though nothing is dropped."""
DEEPEST = 4
"""Attributes of attributes that are searched for arrays."""
OF_CONTAINER = 0.25
"""What a dictionary or a list counts of that: some keep all their parts in one, and the numbers of each in another."""
NEAR = 1e-3
"""By which tables may be off, in half types too, that no weights are near by chance."""
LEAST, CORNER = 3, 16
"""The fewest rows of a triangle that is no weight by chance, and those that are looked at."""
SIZES = ("embed_dim", "num_heads")
KEYS = {"key", "rng", "rngs", "seed", "rnd", "prng", "prngkey"}
"""Words in the names of parameters that take a source of random numbers."""


def is_random(parameter: inspect.Parameter) -> bool:
    """Whether a parameter of a constructor takes a source of random numbers."""
    return bool(KEYS & {*parameter.name.lower().split("_")}) and size_of(parameter.name) is None


def method_of(kind: type) -> str:
    """The method of a plain class that is its call; empty where it has none."""
    own = {name for base in kind.__mro__ for name, each in vars(base).items() if inspect.isfunction(each)}
    return next((name for name in METHODS if name in own), "")


def plain_class(kind: type) -> type[nn.Module] | None:
    """A class that keeps its weights in attributes, as a module; None where none of its arrays is seen."""
    name = method_of(kind)
    if not name:
        return None
    own = [p for p in inspect.signature(kind).parameters.values() if not is_variadic(p)]
    weights = [p.name for p in own if is_given(p)]
    shown = [p for p in own if not (required(p) and is_random(p)) and p.name not in weights]
    drawn = [p.name for p in own if p not in shown and p.name not in weights]
    if weights and not any(size_of(p.name) is Size.WIDTH for p in shown) and not settings_parameter(_signature(shown)):
        shown.append(inspect.Parameter(SIZES[0], inspect.Parameter.KEYWORD_ONLY))
    added = {SIZES[0]} - {p.name for p in own}
    emptying, computed = emptied_by(kind), set[str]()

    def made(**given: Any) -> Held:
        own = {name: each for name, each in given.items() if name not in added}

        def build(arrays: Mapping[str, Any]) -> Any:
            return _drawn(partial(kind, **own, **arrays), drawn)

        made = build(weights_given(weights, given, lambda arrays: getattr(build(arrays), name)))
        put_in_evaluation(made)
        places = _weights(dict(_arrays(made, "", DEEPEST)), computed)
        if not places:
            raise ValueError("it has no weights")
        kept = {path: owner[at] for path, (owner, at) in places.items()}

        def answer(arrays: Mapping[str, Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
            for path, (owner, at) in places.items():
                owner[at] = arrays[path]
            return getattr(made, name)(*inputs, **{**evaluating, **options})

        empty = getattr(made, emptying) if emptying else lambda: None
        framework = framework_of(next(iter(kept.values())))
        backward = backward_of(made) if framework == "numpy" else None
        return Held(kept, answer, framework, empty=empty, backward=backward)

    method = inspect.signature(getattr(kind, name))
    evaluating = {p.name: False for p in method.parameters.values() if p.name in TRAINING and p.default is True}
    called = method.replace(parameters=[p for p in [*method.parameters.values()][1:] if p.name not in evaluating])
    mirror = cast("type[nn.Module]", mirror_class(kind, made, _signature(shown), called, emptying))
    return mirror if _can_be_built(mirror, shown) else None


def _drawn(build: Callable[..., Any], drawn: Sequence[str]) -> Any:
    """What is built with the first source of random numbers that it takes, if it needs any."""
    sources = (random_key, lambda: np.random.default_rng(0), lambda: np.random.RandomState(0))
    for source in sources if drawn else ():
        outcome = safe_call(lambda: build(**{name: source() for name in drawn}))  # noqa: B023  # called at once
        if not outcome.error:
            return outcome.value
    return build(**{name: random_key() for name in drawn})


def _signature(parameters: Sequence[inspect.Parameter]) -> inspect.Signature:
    return inspect.Signature(sorted(parameters, key=lambda p: (p.kind, not required(p))))


def _can_be_built(mirror: type[nn.Module], parameters: Sequence[inspect.Parameter]) -> bool:
    """Whether it has weights, with sizes for whatever it needs."""
    named = {p.name: size_of(p.name) or Size.WIDTH for p in parameters if required(p)}
    given = {name: value_of(size, 12, 3) for name, size in named.items()}
    if (name := settings_parameter(_signature(parameters))) and name in given:
        given[name] = settings_of(mirror, name, 12, 3)
    return safe_call(lambda: mirror(**given)).value is not None


def random_key() -> Any:
    """A source of random numbers, of JAX where it is loaded."""
    if "jax" not in sys.modules:
        return 0
    import jax

    return jax.random.PRNGKey(0)


def framework_of(array: Any) -> str:
    """By what it is computed with."""
    return "torch" if isinstance(array, torch.Tensor) else "jax" if is_jax(array) else "numpy"


def _arrays(owner: Any, path: str, depth: float) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The floating arrays among its attributes and theirs, by path, each with what has it and under which key."""
    inside: Any = owner if isinstance(owner, dict | list) else getattr(owner, "__dict__", None)
    if inside is None or depth <= 0 or isinstance(owner, type) or inspect.isroutine(owner):
        return
    for at, each in list(enumerate(inside) if isinstance(inside, list) else inside.items()):
        name = f"{path}.{at}" if path else str(at)
        if is_weight(each):
            yield name, (inside, at)
        elif isinstance(each, dict | list):
            yield from _arrays(each, name, depth - OF_CONTAINER)
        elif hasattr(each, "__dict__"):
            yield from _arrays(each, name, depth - 1)


def arrays_in(owner: Any) -> list[Any]:
    """The floating arrays among its attributes and theirs."""
    return [inside[at] for inside, at in dict(_arrays(owner, "", DEEPEST)).values()]


Owner = tuple[Any, Any]
"""What has an array, and under which key."""


def _weights(places: Mapping[str, Owner], known: set[str]) -> dict[str, Owner]:
    """The arrays without gradients, sums of optimizers, triangles of causality and tables of rotations.

    The names of the former are those of matrices that begin as zeros. `known` has the paths of what is computed:
    in heads of two components, a single frequency or cosine is no sign of what it is.
    """
    arrays = [owner[at] for owner, at in places.values()]
    known |= {
        path for path, (owner, at) in places.items() if _is_triangle(owner[at]) or _is_of_angles(owner[at], arrays)
    }
    places = {path: place for path, place in places.items() if path not in known}
    empty = {path for path, (owner, at) in places.items() if owner[at].ndim > 1 and not owner[at].any()}
    names = {path.rpartition(".")[2] for path in empty}
    vectors = {path.rpartition(".")[2] for path, (owner, at) in places.items() if not owner[at].any()}
    names |= {name for name in vectors if _is_of_bias(name, names)}
    kept = {path: place for path, place in places.items() if path.rpartition(".")[2] not in names}
    return {path.removesuffix(".data"): place for path, place in kept.items()} if kept else dict(places)


def _is_triangle(array: Any) -> bool:
    """Whether it has one number on and below its diagonal, or above it, and another one elsewhere."""
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.shape[-1] < LEAST:
        return False
    corner = array[..., :CORNER, :CORNER]  # the whole may be of thousands of tokens, and is looked at in each building
    numbers = np.asarray(corner.detach() if isinstance(corner, torch.Tensor) else corner)
    numbers = numbers.reshape(-1, *corner.shape[-2:])
    below = np.tril(np.ones(corner.shape[-2:], bool))
    sides = (below, ~below), (below.T, ~below.T)
    return bool((numbers != numbers[0, 0, 0]).any()) and any(
        all((numbers[:, side] == numbers[0, side][0]).all() for side in pair) for pair in sides
    )


def _is_of_angles(array: Any, others: Sequence[Any]) -> bool:
    """Whether it has the frequencies of rotations, or with one of the others, or in its halves, cosines and sines."""
    numbers = _numbers(array)
    if numbers.ndim == 1:
        steps = numbers[1:] / numbers[:-1] if (numbers > 0.0).all() else numbers[:0]
        return bool(len(steps) and numbers[0] == 1.0 and steps[0] < 1.0 and np.allclose(steps, steps[0], NEAR))
    alike = (_numbers(each) for each in others if each is not array and each.shape == array.shape)
    halves = np.array_split(numbers, 2, -1) if numbers.shape[-1] % 2 == 0 else [numbers, numbers]
    return any(_is_circle(*pair) for pair in ((numbers, other) for other in alike)) or _is_circle(*halves)


def _is_circle(one: Array, other: Array) -> bool:
    """Whether each is the cosine and the other the sine of angles that begin at 0."""
    starts = {float(np.abs(each.flat[0])) for each in (one, other) if each.size}
    return starts == {0.0, 1.0} and np.allclose(one**2 + other**2, 1.0, 0.0, NEAR)


def _numbers(array: Any) -> Array:
    return np.asarray(array.detach().double() if isinstance(array, torch.Tensor) else array, np.float64)


def _is_of_bias(name: str, sums: Set[str]) -> bool:
    """Whether it is named as the sum for a bias next to one of these for a matrix: `vb_hat` next to `v_hat`."""
    return any(name[:at] + name[at + 1 :] in sums for at, letter in enumerate(name) if letter == "b")


def is_weight(each: Any) -> bool:
    """Whether it is an array of floating numbers with an axis."""
    if isinstance(each, torch.Tensor):
        return each.is_floating_point() and each.ndim > 0
    of_arrays = isinstance(each, np.ndarray) or is_jax(each)
    return of_arrays and getattr(each, "ndim", 0) > 0 and "float" in str(each.dtype)
