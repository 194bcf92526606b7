"""Mirrors: torch modules whose parameters are the arrays of something that is none, such as a class of NumPy arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn

from attention_conformance.implementations.adapters.jax_op import is_jax, jax_array
from attention_conformance.implementations.adapters.jax_programs import Evaluation, called
from attention_conformance.implementations.adapters.tensors import to_array, to_tensor

Answer = Callable[[Mapping[str, Any], Sequence[Any], Mapping[str, Any]], Any]
Backward = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Held:
    """Something with arrays inside, built.

    Attributes:
        arrays: its weights and biases, by path.
        answer: what it answers with other arrays in their places, to inputs by position and options by name.
        framework: "numpy", "jax" or "torch": what it computes with.
        evaluate: how an answer of JAX is computed.
        empty: empties a cache that it holds.
        backward: takes the gradient of its last answer, and returns those of its inputs; None where it has none.
        of_mode: what it is given in training mode, and otherwise.
    """

    arrays: Mapping[str, Any]
    answer: Answer
    framework: str
    evaluate: Evaluation = called
    empty: Callable[[], object] = lambda: None
    backward: Backward | None = None
    of_mode: Callable[[bool], Mapping[str, object]] = lambda training: {}


class Mirror(nn.Module):
    """The base of the classes that `mirror_class` makes."""

    made: ClassVar[Callable[..., Held]]
    original: ClassVar[Any]
    in_parts: ClassVar[bool] = False
    """Whether it has more parameters than projections, so that it is judged as it is built, too."""
    drops: ClassVar[bool] = False
    """Whether it is built with a rate of dropout, which counts in training mode."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__()
        bound = inspect.signature(type(self)).bind(*given, **named)
        self.held = type(self).made(**bound.arguments)
        for path, array in self.held.arrays.items():
            own = to_array(array) if isinstance(array, torch.Tensor) else array
            _register(self, path, to_tensor(np.array(own, np.float32, order="C")))

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Its answer in tensors."""
        parameters = {path: self._at(path) for path in self.held.arrays}
        options = {**self.held.of_mode(self.training), **options}
        if self.held.framework == "torch":
            return self.held.answer(parameters, inputs, options)
        if self.held.framework == "numpy":
            arrays = {path: _into_array(each) for path, each in parameters.items()}
            answer = self.held.answer(arrays, [*map(_into_array, inputs)], _converted(options, _into_array))
            return _in_tensors(answer)
        return _of_jax(self.held, parameters, inputs, options)

    def _at(self, path: str) -> torch.Tensor:
        """What stands at the path: a parameter, or the buffer that it is held at; zeros where it was taken out."""
        owner, _, name = path.rpartition(".")
        tensor: torch.Tensor | None = getattr(self.get_submodule(owner), name)
        if tensor is None:
            like = next(self.parameters())
            return like.new_zeros(np.shape(self.held.arrays[path]))
        return tensor


def _register(module: nn.Module, path: str, tensor: torch.Tensor) -> None:
    *owners, name = path.split(".")
    for owner in owners:
        if owner not in dict(module.named_children()):
            module.add_module(owner, nn.Module())
        module = module.get_submodule(owner)
    module.register_parameter(name, nn.Parameter(tensor))


def mirror_class(
    kind: Any,
    made: Callable[..., Held],
    built: inspect.Signature,
    called: inspect.Signature,
    emptying: str = "",
    in_parts: bool = False,
    drops: bool = False,
) -> type:
    """A subclass of `Mirror` that is built and called with these signatures, the latter without self.

    `emptying` is the name of its method that empties a cache, if it has one; `in_parts`, `drops`: see `Mirror`.
    """

    def forward(self: Mirror, *inputs: Any, **options: Any) -> Any:
        return Mirror.forward(self, *inputs, **options)

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    forward.__signature__ = called.replace(  # type: ignore[attr-defined]  # what inspect.signature reads
        parameters=[own, *called.parameters.values()]
    )
    text = {"__doc__": kind.__doc__, "__signature__": built, "original": staticmethod(kind)}
    known = {**text, "in_parts": in_parts, "drops": drops}
    methods = {"forward": forward, **({emptying: lambda self: self.held.empty()} if emptying else {})}
    return type(kind.__name__, (Mirror,), {**known, "made": staticmethod(made), **methods})


def _converted(options: Mapping[str, Any], into: Callable[[torch.Tensor], Any]) -> dict[str, Any]:
    return {name: into(each) if isinstance(each, torch.Tensor) else each for name, each in options.items()}


def _into_array(tensor: torch.Tensor) -> Any:
    return to_array(tensor.detach())


def _into_jax(tensor: torch.Tensor) -> Any:
    return jax_array(to_array(tensor.detach()))


def _in_tensors(answer: Any) -> Any:
    if isinstance(answer, tuple | list):
        return tuple(map(_in_tensors, answer))
    if isinstance(answer, dict):
        return {name: _in_tensors(each) for name, each in answer.items()}
    if is_jax(answer) or isinstance(answer, np.ndarray):
        return to_tensor(np.array(answer))
    if is_dataclass(answer):
        return {each.name: _in_tensors(getattr(answer, each.name)) for each in fields(answer)}
    return answer


def _of_jax(held: Held, parameters: Mapping[str, Any], inputs: Sequence[Any], options: Mapping[str, Any]) -> Any:
    """The answer of JAX, with gradients for the parameters and inputs, by name, too, where torch computes them."""
    import jax

    named = {name: each for name, each in options.items() if isinstance(each, torch.Tensor) and each.requires_grad}
    paths, floats = list(parameters), [*parameters.values(), *inputs, *named.values()]
    with jax.enable_x64(True):
        given = _converted({name: each for name, each in options.items() if name not in named}, _into_jax)

    def run(arrays: Sequence[Any]) -> Any:
        count, end = len(paths), len(paths) + len(inputs)
        by_name = dict(zip(named, arrays[end:], strict=True))
        return held.answer(dict(zip(paths, arrays[:count], strict=True)), arrays[count:end], {**given, **by_name})

    evaluate = partial(_in_float64, held.evaluate)
    if torch.is_grad_enabled() and any(each.requires_grad for each in floats):
        call: Any = _JaxCall
        flat = call.apply(run, evaluate, *floats)
        return flat[0] if len(flat) == 1 else flat
    return _in_tensors(evaluate(run, floats))


def _in_float64(evaluate: Evaluation, function: Callable[[Any], Any], tensors: Sequence[torch.Tensor]) -> Any:
    import jax

    with jax.enable_x64(True):
        return evaluate(function, [*map(_into_jax, tensors)])


class _JaxCall(torch.autograd.Function):
    """A call of JAX; its gradient is that of the first part of the answer."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Any], Any], evaluate: Callable[..., Any], *floats: Any) -> tuple[Any, ...]:
        """The parts of the answer."""
        ctx.run, ctx.evaluate, ctx.floats = run, evaluate, floats
        output, *others = _parts(evaluate(run, floats))
        kept = tuple(part for part in map(_in_tensors, others) if isinstance(part, torch.Tensor))
        ctx.mark_non_differentiable(*kept)
        return (_in_tensors(output), *kept)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *_: Any) -> tuple[Any, ...]:
        """The gradients of the parameters and inputs."""
        import jax

        def pulled_back(given: Any) -> Any:
            *arrays, cotangent = given
            return jax.vjp(lambda *each: _parts(ctx.run(each))[0], *arrays)[1](cotangent)

        gradients = ctx.evaluate(pulled_back, (*ctx.floats, gradient))
        return (None, None, *map(_in_tensors, gradients))


def _parts(answer: Any) -> list[Any]:
    if is_dataclass(answer):
        return [getattr(answer, each.name) for each in fields(answer)]
    return [*answer] if isinstance(answer, tuple | list) else [answer]
