"""Programs of JAX: a call is traced, and compiled as one, where JAX would compile each of its operations alone.

The function itself runs in every call; what it computes is compiled once for equal traces, quickly and not for speed.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache, lru_cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

import numpy as np

from attention_conformance.implementations.api.safe_call import safe_call

TRUSTED = {"jax", "jaxlib", "flax", "equinox", "haiku", "numpy", "einops", "jaxtyping", *sys.stdlib_module_names}
"""Packages whose functions may be traced: they keep nothing of a trace."""
CHANGEABLE = (MutableMapping, MutableSequence, MutableSet)
KEPT = 64
"""Compiled programs that are kept; each takes megabytes."""
QUICKLY = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
"""Options of XLA: what runs a few times takes longer to compile than to run."""
Tree = Any
Evaluation = Callable[[Callable[[Tree], Tree], Tree], Tree]
_PLAINLY: ContextVar[bool] = ContextVar("plainly", default=False)


@dataclass(frozen=True)
class Traced:
    """What a function computes of given shapes.

    Attributes:
        text: all of it but the numbers of arrays: equal texts are equal programs.
        jaxpr: the same for JAX.
    """

    text: str
    jaxpr: Any = field(compare=False)


def evaluated(function: Callable[[Tree], Tree], arrays: Tree) -> Tree:
    """What a function answers to arrays of JAX, computed as one program; a plain call where it cannot be traced.

    Args:
        function: of a tree of arrays, to a tree of arrays.
        arrays: its argument.

    Raises:
        Exception: whatever the function raises.
    """
    import jax

    if _PLAINLY.get():
        return function(arrays)
    try:
        with plainly():  # what it calls becomes a part of this program, and has none of its own
            closed, shapes = jax.make_jaxpr(function, return_shape=True)(arrays)
    except Exception:
        return function(arrays)
    leaves = _program(Traced("\n".join([str(closed.jaxpr), *_unprinted(closed.jaxpr)]), closed.jaxpr))(
        closed.consts, *jax.tree.leaves(arrays)
    )
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _unprinted(jaxpr: Any) -> Iterator[str]:
    """What a trace computes and does not print: the tiles that a kernel reads, and numbers of traces within it."""
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            yield from _whole(value)


def _whole(value: Any) -> Iterator[str]:
    if is_dataclass(value) and not isinstance(value, type):
        held = [getattr(value, each.name, None) for each in fields(value)]
        yield f"{type(value).__name__} {held}"
        yield from _whole(held)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _whole(each)
    elif hasattr(value, "eqns"):
        numbers = [np.asarray(each).tobytes() for each in getattr(value, "consts", ())]
        yield f"{value} {numbers}"
        yield from _unprinted(value)


def shapes_of(function: Callable[[Tree], Tree], arrays: Tree) -> Tree:
    """The shapes of what a function of JAX answers to arrays, of which nothing is computed.

    Raises:
        Exception: whatever the function raises, and where it is none of JAX.
    """
    import jax

    with plainly():
        return jax.eval_shape(function, arrays)


def called(function: Callable[[Tree], Tree], arrays: Tree) -> Tree:
    """The same by a plain call."""
    return function(arrays)


def evaluation(function: object) -> Evaluation:
    """How calls of a function or class are computed: as programs, unless it could keep what a trace puts into it."""
    return evaluated if can_be_traced(function) else called


@contextmanager
def plainly() -> Iterator[None]:
    """Functions are called as their users call them, so that nothing else takes time and memory."""
    token = _PLAINLY.set(True)
    try:
        yield
    finally:
        _PLAINLY.reset(token)


@dataclass(frozen=True)
class Compiled:
    """A function of arrays of JAX that may be traced: its calls are programs."""

    function: Callable[..., Any]

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Its answer."""
        import jax

        arrays, structure = jax.tree.flatten((inputs, options))
        places = [place for place, each in enumerate(arrays) if isinstance(each, jax.Array)]
        given = [arrays[place] for place in places]
        if not given or any(isinstance(each, jax.core.Tracer) for each in given):
            return self.function(*inputs, **options)

        def call(traced: Sequence[Any]) -> Any:
            whole = {**dict(enumerate(arrays)), **dict(zip(places, traced, strict=True))}
            inputs, options = jax.tree.unflatten(structure, list(whole.values()))
            return self.function(*inputs, **options)

        return evaluated(call, given)


@lru_cache(maxsize=KEPT)
def _program(traced: Traced) -> Callable[..., list[Any]]:
    import jax

    program: Callable[..., list[Any]] = jax.jit(
        partial(jax.core.eval_jaxpr, traced.jaxpr), compiler_options=quick_options()
    )
    return program


@cache
def quick_options() -> dict[str, Any]:
    """Options with which XLA compiles for the CPU quickly, of those that this version knows."""
    import jax

    def known(name: str) -> bool:
        one = jax.jit(lambda number: number + 1, compiler_options={name: QUICKLY[name]})
        return not safe_call(lambda: one(1.0)).error

    return {name: QUICKLY[name] for name in QUICKLY if jax.default_backend() == "cpu" and known(name)}


def can_be_traced(function: object) -> bool:
    """Whether nothing that a function or class reaches by name could keep what a trace puts there, as a cache does."""
    while (inner := _inside(function)) is not None:
        function = inner
    return _keeps_nothing(function, set())


def _inside(wrapper: object) -> object:
    """What a wrapper that keeps nothing calls: a partial, or a frozen one of the suite."""
    if isinstance(wrapper, partial):
        return wrapper.func
    frozen = is_dataclass(wrapper) and not isinstance(wrapper, type) and cast(Any, wrapper).__dataclass_params__.frozen
    # What calls a function of a shipped interface holds it with the names of its parameters.
    return getattr(wrapper, "function", None) or getattr(wrapper, "shipped", None) if frozen else None


def _keeps_nothing(value: object, seen: set[int]) -> bool:
    if isinstance(value, CHANGEABLE) or hasattr(value, "cache_clear"):
        return False
    if id(value) in seen or _is_trusted(value):
        return True
    seen.add(id(value))
    if isinstance(value, FunctionType):
        return not _stores(value.__code__) and all(_keeps_nothing(each, seen) for each in _reached(value))
    if isinstance(value, type):
        own = [each for name, each in vars(value).items() if not (name.startswith("__") and name.endswith("__"))]
        return all(_keeps_nothing(each, seen) for each in [*value.__bases__, *own, vars(value).get("__call__")])
    return isinstance(value, tuple) and all(_keeps_nothing(each, seen) for each in value)


def _reached(function: FunctionType) -> list[object]:
    """What its code names, its defaults and what it closes over."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    named = [function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__]
    return [*cells, *named, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _names(code: CodeType) -> list[str]:
    inner = [name for each in code.co_consts if isinstance(each, CodeType) for name in _names(each)]
    return [*code.co_names, *inner]


def _stores(code: CodeType) -> bool:
    """Whether it assigns to global names."""
    inner = any(_stores(each) for each in code.co_consts if isinstance(each, CodeType))
    return inner or any(each.opname == "STORE_GLOBAL" for each in dis.get_instructions(code))


def _is_trusted(value: object) -> bool:
    owner = value.__name__ if isinstance(value, ModuleType) else type(value).__module__
    owner = value.__module__ if isinstance(value, FunctionType | type) else owner
    return (owner or "").partition(".")[0] in TRUSTED  # what was made of a text belongs to no module
