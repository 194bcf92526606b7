"""Array modules: classes of flax, equinox, haiku, keras and mlx, whose weights are trees of arrays, as modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

import numpy as np
from torch import nn

from attention_conformance.implementations.adapters.jax_programs import evaluated, evaluation
from attention_conformance.implementations.discovery.modules.constructor_names import Size, size_of
from attention_conformance.implementations.discovery.modules.held_arrays import (
    TRAINING,
    is_random,
    is_weight,
    random_key,
)
from attention_conformance.implementations.discovery.modules.mirrors import Held, mirror_class
from attention_conformance.implementations.discovery.modules.neutrals import is_input
from attention_conformance.implementations.discovery.signatures import is_variadic, required, role
from attention_conformance.implementations.discovery.vocabulary import INPUTS, words_of

WIDTH = "embed_dim"
"""The parameter added where a constructor is not given the width of its inputs."""
HIDDEN = ("parent", "name", "rngs", "key", "rng")
"""Parameters that frameworks add: what owns a module, its name, and its source of random numbers."""
INITIAL = ("w_init", "w_init_scale")
"""Parameters that state how haiku draws weights."""
COUNTED = (Size.HEADS, Size.WIDTH, Size.HEAD_WIDTH, Size.LENGTH)
"""What a number by default counts that is not that of the suite."""
Tree = Any


def built_once(made: Callable[..., Held], keeps: Callable[[Held], bool] = lambda held: True) -> Callable[..., Held]:
    """The same, which builds once for equal sizes what it `keeps`: that is never changed."""
    kept: dict[tuple[tuple[str, Any], ...], Held] = {}

    def built(**given: Any) -> Held:
        sizes = (*sorted(given.items(), key=lambda each: each[0]),)
        try:
            known = kept.get(sizes)
        except TypeError:  # one of them has no hash
            return made(**given)
        held = known or made(**given)
        return kept.setdefault(sizes, held) if keeps(held) else held

    return built


def array_module(kind: type) -> type[nn.Module] | None:
    """A class of one of these libraries as a module; None for any other class."""
    return next((made(kind) for start, made in MAKERS.items() if _is_of(kind, start)), None)


def weighs_late(kind: type) -> bool:
    """Whether its weights are made in the first call, so that an object that was just built shows none."""
    return any(_is_of(kind, start) for start in ("flax.linen", "haiku", "keras"))


def _is_of(kind: type, package: str) -> bool:
    """Whether one of its bases is of that package."""
    return any(f"{base.__module__}.".startswith(f"{package}.") for base in kind.__mro__)


def _constructor(kind: type) -> list[inspect.Parameter]:
    """The parameters of its constructor that count something or have to be given, without sources of numbers."""
    own = [p for p in _built(kind).parameters.values() if not is_variadic(p) and p.name not in HIDDEN]
    own = [p for p in own if not is_random(p) and (required(p) or _counts(p))]
    return [p for p in own if p.name not in INITIAL]


def _built(kind: type) -> inspect.Signature:
    """The signature of its constructor, which a metaclass may hide; with what its **kwargs hands on to its base."""
    whole = inspect.signature(kind.__init__)  # type: ignore[misc]  # of a class, not of an instance
    own = list(whole.parameters.values())[1:]
    if own and own[-1].kind is inspect.Parameter.VAR_KEYWORD and len(kind.__mro__) > 2:
        base = next((each for each in kind.__mro__[1:] if "__init__" in vars(each)), object)
        inherited = _built(base).parameters.values() if base is not object else []
        names = {p.name for p in own}
        own += [p.replace(kind=p.KEYWORD_ONLY) for p in inherited if p.name not in names and not is_variadic(p)]
        own.sort(key=lambda p: p.kind)
    return whole.replace(parameters=own)


def _counts(parameter: inspect.Parameter) -> bool:
    """Whether its default is a size that would not be that of the suite."""
    return type(parameter.default) is int and size_of(parameter.name) in COUNTED


def _with_width(parameters: Sequence[inspect.Parameter]) -> inspect.Signature:
    """Their signature, with the width of the inputs where none of them is it."""
    if any(p.name == WIDTH for p in parameters):
        return inspect.Signature(parameters)
    width = inspect.Parameter(WIDTH, inspect.Parameter.KEYWORD_ONLY)
    named = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    return inspect.Signature([width, *named])


def _call(kind: type) -> inspect.Signature:
    """The signature of its call, without self and sources of random numbers."""
    whole = list(inspect.signature(cast(Any, kind).__call__).parameters.values())[1:]
    fixed = _fixed(kind)
    hidden = [p for p in whole if _is_source(p, whole) or (p.name in fixed and required(p))]
    return inspect.Signature([p for p in whole if p not in hidden])


def _is_source(parameter: inspect.Parameter, every: Sequence[inspect.Parameter]) -> bool:
    """Whether a parameter of a call takes a source of random numbers: no `key` where there is a query or a value."""
    inputs = {role(p.name) for p in every} - {"key"}
    return parameter.name in HIDDEN and (parameter.kind is parameter.KEYWORD_ONLY or not inputs & set(INPUTS))


def _sources(kind: type) -> list[str]:
    """The sources of random numbers that its call has to be given."""
    whole = list(inspect.signature(cast(Any, kind).__call__).parameters.values())[1:]
    return [p.name for p in whole if _is_source(p, whole) and required(p)]


def split_tree(tree: Tree) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], Tree]]:
    """The floating arrays of a tree by path, and what puts others in their places."""
    import jax

    found, shape = jax.tree_util.tree_flatten_with_path(tree)
    paths = [_path(keys) for keys, _ in found]
    arrays = {path: each for path, (_, each) in zip(paths, found, strict=True) if is_weight(each)}

    def joined(others: Mapping[str, Any]) -> Tree:
        leaves = [others.get(path, each) for path, (_, each) in zip(paths, found, strict=True)]
        return jax.tree_util.tree_unflatten(shape, leaves)

    return arrays, joined


def _path(keys: Sequence[Any]) -> str:
    parts = [str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", "")))) for key in keys]
    parts = parts[:-1] if parts[-1:] in (["value"], ["raw_value"]) else parts
    kept = [part for each in parts if each != "params" for part in each.split("/")]
    return ".".join(part.replace(".", "_") for part in kept if part and part != "~")


def _zeros(width: int, called: inspect.Signature) -> list[list[Any]]:
    """Inputs that may be given to make the parameters: with samples, and without."""
    named = [p for p in called.parameters.values() if role(p.name)]
    needed = [p for p in called.parameters.values() if required(p)]
    count = 3 if {role(p.name) for p in named} == set(INPUTS) else max(1, len(needed))
    seen = [np.ones((1, 1, 1, 1), bool)] * sum("mask" in words_of(p.name) for p in needed)
    counts = dict.fromkeys((count, max(1, count - len(seen)), 1))
    shapes = ((1, 2, width), (2, width))
    plain = [[np.zeros(shape, np.float32)] * each for each in counts for shape in shapes]
    masked = [[*each, *seen] for each in plain if seen and len(each) + len(seen) == count]
    others = [p for p in needed if not is_input(p.name)]
    rest = [[None if p in others else np.zeros(shape, np.float32) for p in needed] for shape in shapes if others]
    return [*masked, *plain, *rest]


def _first(attempts: Sequence[Callable[[], Any]]) -> Any:
    """The first result without an error; the error of the first where there is none."""
    refused: Exception | None = None
    for attempt in attempts:
        try:
            return attempt()
        except Exception as error:
            refused = refused or error
    assert refused is not None
    raise refused


def _drawn(initial: Callable[..., Tree], inputs: Sequence[Any]) -> Tree:
    return evaluated(lambda key: initial(key, *inputs), random_key())


def _fixed(kind: type) -> dict[str, Any]:
    """What is always given to its call: no dropout, and a flag of training where it has to be given."""
    names = inspect.signature(cast(Any, kind).__call__).parameters
    flags = {name: False for name in TRAINING if name in names and required(names[name])}
    return {"deterministic": True, **flags} if "deterministic" in names else flags


def _linen(kind: type) -> type[nn.Module]:
    parameters, called, fixed = _constructor(kind), _call(kind), _fixed(kind)
    given_width = any(p.name == WIDTH for p in parameters)

    def made(embed_dim: int, **given: Any) -> Held:
        module: Any = kind(**given, **({WIDTH: embed_dim} if given_width else {}))
        inputs = _zeros(embed_dim, called)
        arrays, joined = split_tree(_first([partial(_drawn, partial(module.init, **fixed), each) for each in inputs]))

        def answer(arrays: Mapping[str, Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
            return module.apply(joined(arrays), *inputs, **{**fixed, **options})

        return Held(arrays, answer, "jax", evaluation(kind))

    return cast("type[nn.Module]", mirror_class(kind, built_once(made), _with_width(parameters), called))


def _haiku(kind: type) -> type[nn.Module]:
    parameters, called = _constructor(kind), _call(kind)
    given_width = any(p.name == WIDTH for p in parameters)
    initial = "w_init" in _built(kind).parameters

    def made(embed_dim: int, **given: Any) -> Held:
        hk: Any = import_module("haiku")
        extra: dict[str, Any] = {"w_init": hk.initializers.VarianceScaling(1.0)} if initial else {}
        extra |= {WIDTH: embed_dim} if given_width else {}
        pure = hk.transform(lambda *inputs, **options: cast(Any, kind)(**given, **extra)(*inputs, **options))
        inputs = _zeros(embed_dim, called)
        arrays, joined = split_tree(_first([partial(_drawn, pure.init, each) for each in inputs]))

        def answer(arrays: Mapping[str, Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
            return pure.apply(joined(arrays), random_key(), *inputs, **options)

        return Held(arrays, answer, "jax", evaluation(kind))

    return cast("type[nn.Module]", mirror_class(kind, built_once(made), _with_width(parameters), called))


def _equinox(kind: type) -> type[nn.Module]:
    parameters, called = _constructor(kind), _call(kind)
    random = [n for n, p in _built(kind).parameters.items() if n in HIDDEN or is_random(p)]
    sources = _sources(kind)

    def made(**given: Any) -> Held:
        module: Any = kind(**given, **{name: random_key() for name in random})
        arrays, joined = split_tree(module)

        def answer(arrays: Mapping[str, Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
            return joined(arrays)(*inputs, **{name: random_key() for name in sources}, **options)

        return Held(arrays, answer, "jax", evaluation(kind))

    return cast("type[nn.Module]", mirror_class(kind, built_once(made), inspect.Signature(parameters), called))


def _nnx(kind: type) -> type[nn.Module]:
    parameters, called = _constructor(kind), _call(kind)
    uncached = {"decode": False}
    at_start = uncached if "decode" in _built(kind).parameters else {}
    fixed = {n: x for n, x in {**_fixed(kind), **uncached}.items() if n in called.parameters}

    def made(**given: Any) -> Held:
        nnx: Any = import_module("flax.nnx")
        module: Any = kind(**given, **at_start, rngs=nnx.Rngs(0))
        graph, params, rest = nnx.split(module, nnx.Param, ...)
        arrays, joined = split_tree(params)

        def answer(arrays: Mapping[str, Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
            return nnx.merge(graph, joined(arrays), rest)(*inputs, **{**fixed, **options})

        return Held(arrays, answer, "jax", evaluation(kind))

    return cast("type[nn.Module]", mirror_class(kind, built_once(made), inspect.Signature(parameters), called))


def _mlx(kind: type) -> type[nn.Module]:
    parameters, called = _constructor(kind), _call(kind)

    def made(**given: Any) -> Held:
        mx: Any = import_module("mlx.core")
        utils: Any = import_module("mlx.utils")
        module: Any = kind(**given)
        module.eval()

        def into(each: Any) -> Any:
            return mx.array(each) if isinstance(each, np.ndarray) else each

        def back(each: Any) -> Any:
            if isinstance(each, tuple | list):
                return tuple(map(back, each))
            return np.array(each) if isinstance(each, mx.array) else each

        def answer(arrays: Mapping[str, Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
            module.update(utils.tree_unflatten([(path, into(array)) for path, array in arrays.items()]))
            return back(module(*map(into, inputs), **{name: into(each) for name, each in options.items()}))

        return Held({path: back(array) for path, array in utils.tree_flatten(module.parameters())}, answer, "numpy")

    return cast("type[nn.Module]", mirror_class(kind, made, inspect.Signature(parameters), called))


def _keras(kind: type) -> type[nn.Module]:
    parameters = _constructor(kind)
    whole = list(inspect.signature(cast(Any, kind).call).parameters.values())[1:]
    called = inspect.Signature([p for p in whole if p.name not in TRAINING])
    fixed = {p.name: False for p in whole if p.name in TRAINING}
    given_width = any(p.name == WIDTH for p in parameters)

    def made(embed_dim: int, **given: Any) -> Held:
        keras: Any = import_module("keras")
        module: Any = kind(**given, **({WIDTH: embed_dim} if given_width else {}))
        _first([partial(module, *each, **fixed) for each in _zeros(embed_dim, called)])
        places = dict(_variables(keras, module, "", module))
        kept = {path: keras.ops.convert_to_numpy(place.value) for path, place in places.items()}

        def answer(arrays: Mapping[str, Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
            with keras.StatelessScope(state_mapping=[(places[path], each) for path, each in arrays.items()]):
                return module(*inputs, **{**fixed, **options})

        return Held(kept, answer, keras.config.backend(), evaluation(kind))

    return cast("type[nn.Module]", mirror_class(kind, made, _with_width(parameters), called))


def _variables(keras: Any, owner: Any, path: str, module: Any) -> Iterator[tuple[str, Any]]:
    """The variables of a layer and of the layers among its attributes, by path."""
    trained = {id(each) for each in module.trainable_variables}
    seen: set[int] = set()
    children = dict(owner.named_children()) if isinstance(owner, nn.Module) else {}
    for name, each in {**vars(owner), **children}.items():
        at = f"{path}.{name.strip('_')}" if path else name.strip("_")
        if isinstance(each, keras.Variable) and id(each) in trained - seen:
            seen.add(id(each))
            yield at, each
        elif isinstance(each, keras.layers.Layer) and each is not owner:
            yield from _variables(keras, each, at, module)


MAKERS: Mapping[str, Callable[[type], type[nn.Module]]] = {
    "flax.linen": _linen,
    "flax.nnx": _nnx,
    "equinox": _equinox,
    "haiku": _haiku,
    "mlx": _mlx,
    "keras": _keras,
}
"""How a class is mirrored, by the package of one of its bases."""
