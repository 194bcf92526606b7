"""Weighted functions: those that take their weights as arguments or in dictionaries, as modules."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.jax_programs import called, can_be_traced, evaluation, shapes_of
from attention_conformance.implementations.adapters.mha_interface import PLACES
from attention_conformance.implementations.api.global_state import numpy_seeded, torch_seeded
from attention_conformance.implementations.api.safe_call import safe_call
from attention_conformance.implementations.discovery.modules.array_modules import built_once
from attention_conformance.implementations.discovery.modules.bare import Globals
from attention_conformance.implementations.discovery.modules.columns import of_columns
from attention_conformance.implementations.discovery.modules.constructor_names import (
    GROUPS,
    Size,
    settings_of,
    settings_parameter,
    size_of,
    value_of,
)
from attention_conformance.implementations.discovery.modules.constructors import HEADS, WIDTH
from attention_conformance.implementations.discovery.modules.file_sizes import sizes_in_file, variables_of
from attention_conformance.implementations.discovery.modules.forwards import inputs_in
from attention_conformance.implementations.discovery.modules.given_weights import (
    COUNTS,
    Axes,
    Weights,
    dictionaries,
    flattened,
    is_given,
    layers_of,
    nested,
    path_of,
    roles_in,
)
from attention_conformance.implementations.discovery.modules.held_arrays import (
    SIZES,
    framework_of,
    is_random,
    random_key,
)
from attention_conformance.implementations.discovery.modules.mirrors import Held, mirror_class
from attention_conformance.implementations.discovery.modules.neutrals import combined
from attention_conformance.implementations.discovery.modules.passed_groups import GROUPED, lie_apart, passed_groups
from attention_conformance.implementations.discovery.modules.passed_groups import SIZES as GROUPED_SIZES
from attention_conformance.implementations.discovery.modules.passed_rates import RATE, PassedRate, passed_rate
from attention_conformance.implementations.discovery.probe import parts_of
from attention_conformance.implementations.discovery.signatures import is_variadic, required, role
from attention_conformance.implementations.discovery.vocabulary import OPTIONS, words_of

MOST = 24
"""Combinations of what is given to parameters that are no inputs."""
TOKENS = 5
OTHER_SIZES = (20, 2)
"""A width of inputs that are no three equal parts, and a number of heads."""
NUMBERS = {"i", "idx", "index", "id", "number", "num", "no"}
"""Words in the name of the number of a layer."""
DROPPED = 0.5
"""A rate of dropout, with which hardly any answer is the same by chance."""
NUMERIC = (inspect.Parameter.empty, int, float, "int", "float")
"""Annotations of what is a number."""
Supply = Callable[[int, int, Sequence[int]], object]
"""What a parameter is given, from the width, the heads and the shape of an input."""


@dataclass(frozen=True)
class Weighted:
    """A function with parameters that are weights.

    Attributes:
        function: it.
        weights: its parameters that are a weight or a bias each.
        layers: those that are dictionaries.
        supplied: those that are given a size, the usual scale, or the number of a layer.
        settings: its parameter that is an object of settings.
        globals: the sizes that it reads from its file.
        inputs: its parameters that are inputs.
        called: its other parameters, and these.
        always: what its others are given.
    """

    function: Callable[..., Any]
    weights: tuple[inspect.Parameter, ...]
    layers: tuple[inspect.Parameter, ...]
    supplied: Mapping[str, Supply]
    settings: str
    globals: Mapping[str, Size]
    inputs: tuple[str, ...]
    called: inspect.Signature
    always: Mapping[str, object] = field(default_factory=dict)

    def answer(
        self, width: int, heads: int, arrays: Mapping[str, Any], inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """Its answer with weights by path."""
        bound = dict(zip([n for n in self.called.parameters if n not in options], inputs, strict=False))
        shape = next((x.shape for x in (*inputs, *options.values()) if getattr(x, "ndim", 0) > 1), (1, 1))
        given = {name: supply(width, heads, shape) for name, supply in self.supplied.items()}
        if self.settings:
            given[self.settings] = settings_of(self.function, self.settings, width, heads, lenient=True)
        sizes = {name: value_of(size, width, heads) for name, size in self.globals.items()}
        own = {path_of(p.name): p.name for p in self.weights}
        arrays = {own.get(path, path): array for path, array in arrays.items()}
        with Globals(variables_of(self.function), sizes):
            return self.function(**bound, **{**self.always, **options}, **nested(arrays), **given)

    def always_given(self, given: Mapping[str, object]) -> Weighted:
        """The same, whose parameters of these names are given this."""
        supplied = {name: supply for name, supply in self.supplied.items() if name not in given}
        kept = [p for name, p in self.called.parameters.items() if name not in given]
        called = self.called.replace(parameters=kept)
        return replace(self, supplied=supplied, called=called, always={**self.always, **given})

    def tried(self, weights: Weights) -> Iterator[dict[str, Any]]:
        """What may be given as its weights, the likelier first."""
        if self.layers:
            yield from dictionaries(self.layers, weights)
            return
        for axes in sorted(Axes, key=lambda each: each is not Axes.ROWS) if self.as_torch else Axes:
            yield {p.name: replace(weights, axes=axes).named(p.name) for p in self.weights}

    @property
    def as_torch(self) -> bool:
        """Whether a name of its weights is one of nn.MultiheadAttention's, which holds rows."""
        return any(p.name in PLACES for p in self.weights)

    def _seen(self, answer: Callable[..., Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """The answer, or that of JAX without its numbers, each of whose operations would be compiled for them."""
        if "jax" in sys.modules and isinstance(inputs[0], np.ndarray) and can_be_traced(self.function):
            shapes = safe_call(lambda: shapes_of(lambda each: answer(each, options), [*inputs])).value
            if shapes is not None:
                return shapes
        return safe_call(partial(answer, inputs, options)).value

    def first_answer(self, weights: Weights, given: Mapping[str, Any]) -> Any:
        """Its first answer that is as its input; None where there is none."""
        needed = [p.name for p in self.called.parameters.values() if required(p) and p.name not in self.inputs]
        neutral = list(islice(combined(needed), MOST)) or [{}]
        batch = torch.ones(2, TOKENS, weights.width)
        for tables, x in product(neutral, (batch, batch[0])):
            inputs = [_converted(x, weights.into)] * len(self.inputs)
            options = {
                name: _converted(each.given(batch, batch, weights.heads), weights.into) for name, each in tables.items()
            }
            answer = self._seen(partial(self.answer, weights.width, weights.heads, given), inputs, options)
            for part in parts_of(answer):
                if getattr(part, "shape", None) is not None and tuple(part.shape) == tuple(x.shape):
                    return part
        return None


@dataclass(frozen=True)
class Shown:
    """What a first call has shown.

    Attributes:
        number: the first one of what `Weighted.tried` gives that it takes.
        framework: that of its arrays.
        sizes: those that it looked up among its weights, by path.
        headed: whether it looked up a number of heads, or its weights have an axis of them.
    """

    number: int
    framework: str
    sizes: Mapping[str, Size]
    headed: bool

    def weights(self, width: int, heads: int, kv_heads: int = 0) -> Weights:
        """Those of its framework."""
        into = torch.from_numpy if self.framework == "torch" else np.asarray
        return Weights(width, heads, into=into, kv_heads=kv_heads)


def weighted_function(function: Any) -> type[nn.Module] | None:
    """A function that takes its weights as arguments, as a module; None where their names are not those of weights.

    One whose tokens are columns, (E, L), as in some textbooks, is given them so where it answers to no rows.
    """
    rows = _taken(function)
    unanswered = rows is not None and rows[1] is None and inspect.isfunction(function)
    columns = _taken(of_columns(function)) if unanswered else None
    taken = rows if columns is None or columns[1] is None else columns
    return None if taken is None else _as_module(function, *taken)


def _taken(function: Any) -> tuple[Weighted, Shown | None] | None:
    """Its parameters, and what a first call has shown; None where it has no weights, or takes no dictionary of them."""
    parts = _parts(function)
    shown = _shown(parts, WIDTH, HEADS) if parts else None
    of_layers = _parts(function, of_layers=True) if shown is None else None
    if of_layers is not None and (found_of_layers := _shown(of_layers, WIDTH, HEADS)) is not None:
        parts, shown = of_layers, found_of_layers
    return None if parts is None or (shown is None and parts.layers) else (parts, shown)


def _as_module(function: Any, parts: Weighted, shown: Shown | None) -> type[nn.Module]:
    """The module whose parameters are its weights."""
    rate = None if shown is None else _rate(parts, shown)
    parts = parts if rate is None else parts.always_given(rate.given(0.0, training=True))
    groups = "" if shown is None else _groups(parts, shown)
    counts_heads = shown is None or shown.headed or bool(parts.supplied or parts.settings or parts.globals)
    found = shown or Shown(0, "torch", {}, headed=False)

    def made(embed_dim: int, num_heads: int = 1, dropout: float = 0.0, num_kv_heads: int = 0) -> Held:
        weights = found.weights(embed_dim, num_heads, num_kv_heads)
        own = parts.always_given({groups: num_kv_heads or num_heads}) if groups else parts
        given = next(islice(own.tried(weights), found.number, None))
        if parts.layers:  # a call makes whatever is looked up
            own.first_answer(weights, given)
        flat = {path_of(path): each for path, each in flattened(given).items()} if parts.weights else flattened(given)
        arrays = {path: each for path, each in flat.items() if path not in found.sizes}
        sizes = {path: each for path, each in flat.items() if path in found.sizes}

        def answer(arrays: Mapping[str, Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
            return own.answer(embed_dim, num_heads, {**sizes, **arrays}, inputs, options)

        held = Held(arrays, answer, found.framework, evaluation(function) if found.framework == "jax" else called)
        return held if rate is None else replace(held, of_mode=partial(rate.given, dropout))

    names = SIZES if counts_heads else SIZES[:1]
    built = _constructor(names, {**({RATE: 0.0} if rate else {}), **({GROUPED: 0} if groups else {})})
    signature = parts.always_given({groups: 0}).called
    mirror = mirror_class(function, built_once(made), built, signature, drops=rate is not None)
    return cast("type[nn.Module]", mirror)


def _constructor(sizes: Sequence[str], options: Mapping[str, object]) -> inspect.Signature:
    """Of the module, with options by name."""
    counted = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in sizes]
    named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each) for name, each in options.items()]
    return inspect.Signature([*counted, *named])


def _groups(parts: Weighted, shown: Shown) -> str:
    """Its parameter for the number of heads of keys and values, if it answers with fewer; else empty."""
    name = safe_call(lambda: passed_groups(inspect.signature(parts.function))).value
    if not name:
        return ""
    weights, own = shown.weights(*GROUPED_SIZES), parts.always_given({name: GROUPED_SIZES[2]})
    given = next(islice(own.tried(weights), shown.number, None))
    return name if own.first_answer(weights, given) is not None and lie_apart(flattened(given)) else ""


def _rate(parts: Weighted, shown: Shown) -> PassedRate | None:
    """Its rate of dropout, where other numbers are drawn with each seed, and none without it."""
    rate = safe_call(lambda: passed_rate(inspect.signature(parts.function))).value
    if rate is None or shown.framework == "jax":
        return None
    tried = parts.always_given(rate.given(0.0, training=True))
    modes = [rate.given(DROPPED, training) for training in (True, False)]
    return rate if any(_draws(tried, shown, each) for each in modes) else None


def _draws(parts: Weighted, shown: Shown, always: Mapping[str, object]) -> bool:
    """Whether each seed gives another answer with a rate of dropout, and all the same without."""
    without = {name: 0.0 if each == DROPPED else each for name, each in always.items()}
    plain = [_drawn(parts, shown, without, seed) for seed in (1, 2)]
    dropped = [_drawn(parts, shown, always, seed) for seed in (1, 2, 1)]
    if any(each is None for each in (*plain, *dropped)):
        return False
    same = np.array_equal(*plain) and np.array_equal(dropped[0], dropped[2])
    return same and not np.array_equal(dropped[0], dropped[1])


def _drawn(parts: Weighted, shown: Shown, always: Mapping[str, object], seed: int) -> Any:
    """Its first answer with what is given it always, as an array; None where there is none."""
    weights = shown.weights(WIDTH, HEADS)
    given = next(islice(parts.tried(weights), shown.number, None))
    with torch_seeded(seed), numpy_seeded(seed):
        answer = replace(parts, always={**parts.always, **always}).first_answer(weights, given)
    return None if answer is None else np.asarray(answer)


def _parts(function: Any, of_layers: bool = False) -> Weighted | None:
    """Its parameters; `of_layers`: what is named as a layer is a weight, and no dictionary."""
    signature = safe_call(lambda: inspect.signature(function)).value
    if signature is None or isinstance(function, type):
        return None
    every = [p for p in signature.parameters.values() if not is_variadic(p)]
    weights = [p for p in every if is_given(p, of_layers)]
    layers = [] if weights else layers_of(every)
    roles = {each for p in weights for each in roles_in(p.name)}
    rest = [p for p in every if p not in (*weights, *layers)]
    if not ({"q", "k", "v"} <= roles or layers) or not any(required(p) for p in rest):
        return None
    supplied = {p.name: each for p in rest if (each := _supply(p)) is not None}
    if not {"query", "value"} & {role(p.name) for p in rest}:
        supplied |= {p.name: _source for p in rest if required(p) and is_random(p)}
    rest = [p for p in rest if p.name not in supplied]
    settings = settings_parameter(signature.replace(parameters=rest))
    called = signature.replace(parameters=[p for p in rest if p.name != settings])
    inputs = safe_call(lambda: [p.name for p in inputs_in(called)]).value
    inside = {} if settings else sizes_in_file(function)
    if not inputs:
        return None
    return Weighted(function, (*weights,), (*layers,), supplied, settings, inside, (*inputs,), called)


def _source(*_: object) -> object:
    """A source of random numbers."""
    return random_key()


def _supply(parameter: inspect.Parameter) -> Supply | None:
    """What it is given; None where it is something else."""
    size, name = size_of(parameter.name), parameter.name
    counted_otherwise = type(parameter.default) is int and size in COUNTS  # which would not be that of the suite
    needed = required(parameter) or counted_otherwise
    if not needed or role(name) is not None or parameter.annotation not in NUMERIC:
        return None
    if name in OPTIONS["scale"].parameters:
        return lambda width, heads, shape: (width // heads) ** -0.5
    if size in COUNTS or name in GROUPS:
        counted = size or Size.HEADS
        return lambda width, heads, shape: value_of(counted, width, heads)
    if size is Size.LENGTH and "window" not in name:
        return lambda width, heads, shape: shape[-2]
    if size is Size.RATE:
        return lambda width, heads, shape: 0.0
    if size is Size.SAMPLES:
        return lambda width, heads, shape: shape[0] if len(shape) > 2 else 1
    words = words_of(name)
    return (lambda width, heads, shape: 0) if "layer" in words and words & NUMBERS else None


def _shown(parts: Weighted, width: int, heads: int) -> Shown | None:
    """What the first weights show that it takes; None where it answers with none of them."""
    shown: list[Shown] = []
    for into in (np.asarray, torch.from_numpy):
        for number, given in enumerate(parts.tried(Weights(width, heads, into=into))):
            answer = parts.first_answer(Weights(width, heads, into=into), given)
            flat = flattened(given)
            sizes = {path: size_of(path.rpartition(".")[2]) or Size.HEADS for path, x in flat.items() if type(x) is int}
            if answer is None or len(sizes) == len(flat):
                continue
            found = Shown(number, framework_of(answer), sizes, headed=bool(sizes) or _has_heads(flat, width))
            if parts.layers or _answers_at(parts, number, Weights(*OTHER_SIZES, into=into)):
                return found
            shown.append(found)
    return shown[0] if shown else None


def _answers_at(parts: Weighted, number: int, weights: Weights) -> bool:
    """Whether it takes weights of these axes at other sizes, too: a reshape may take any at the first ones."""
    given = next(islice(parts.tried(weights), number, None))
    return parts.first_answer(weights, given) is not None


def _converted(given: Any, into: Callable[[Any], Any]) -> Any:
    if isinstance(given, tuple):
        return tuple(_converted(each, into) for each in given)
    return into(given.numpy()) if isinstance(given, torch.Tensor) else given


def _has_heads(flat: Mapping[str, Any], width: int) -> bool:
    return any(getattr(each, "ndim", 0) > 2 or np.shape(each)[-1:] < (width,) for each in flat.values())
