"""Op adapters: a function of query, key and value becomes an implementation in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from attention_conformance.implementations.adapters.native import Native, bound, indirect
from attention_conformance.implementations.adapters.native_torch import native_call
from attention_conformance.implementations.adapters.op_options import extra_options, seeded
from attention_conformance.implementations.adapters.tensors import (
    Tensors,
    array_forms,
    differing,
    forms,
    gradients_of,
    second_products,
    tensors,
    to_array,
    to_tensor,
)
from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.features import Polarity
from attention_conformance.spec.problem import Array, Problem

INPUTS = ("query", "key", "value")
Answer = torch.Tensor | tuple[torch.Tensor, ...]
"""The output, or a tuple of output and extras in the order that `extras` names."""


def torch_op(
    function: Callable[..., Answer],
    *,
    extras: tuple[str, ...] = (),
    polarity: Polarity = Polarity.MAY_ATTEND,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    reused: bool = False,
    twice: bool = False,
) -> TorchOp:
    """A `run` for a function with the parameters of torch's scaled_dot_product_attention, or some of them.

    Only what a problem asks for is passed: attn_mask, key_padding_mask, is_causal=True and scale
    appear where they are wanted, and what `extra_options` names.

    Args:
        function: called as function(query, key, value, attn_mask=..., is_causal=..., scale=...).
        extras: what it returns after the output, by the names of `Result`.
        polarity: what True means in its boolean masks.
        context: entered around each forward call, to choose a kernel for instance.
        reused: the tensors of the last call of the same shapes are filled anew and passed again, not new ones.
        twice: gradients are differentiated again, see `second_products`.
    """
    return TorchOp(function, extras, polarity, context, reused, twice)


@dataclass(frozen=True, eq=False)
class TorchOp:
    """The `run` that `torch_op` makes, see there."""

    function: Callable[..., Answer]
    extras: tuple[str, ...]
    polarity: Polarity
    context: Callable[[], AbstractContextManager[Any]]
    reused: bool
    twice: bool
    arena: Tensors = field(default_factory=dict)

    def __call__(self, problem: Problem, device: str) -> Result:
        """Answers the problem."""
        given = tensors(problem, device)
        given = _refilled(self.arena, given) if self.reused and problem.cotangent is None else given
        # A backward pass that draws again draws from where the forward pass has left the generator.
        with seeded(problem):
            with self.context(), torch.set_grad_enabled(problem.cotangent is not None):
                before = forms(given)
                answer = self.function(*(given[n] for n in INPUTS), **op_options(problem, given, self.polarity))
                disturbed = differing(before, forms(given))
            output, *rest = answer if isinstance(answer, tuple) else (answer,)
            found = {} if problem.cotangent is None else _gradients(problem, given, output, self.twice)
            others: dict[str, Any] = {n: to_array(t) for n, t in zip(self.extras, rest, strict=True)}
            return Result(to_array(output), gradients=found, disturbed=disturbed, **others)

    def native(self, problem: Problem, device: str) -> Native:
        """The function's own call; second derivatives have none."""
        if self.twice:
            return indirect(self, problem, device)
        given = tensors(problem, device)
        forward = bound(self.function, *(given[n] for n in INPUTS), **op_options(problem, given, self.polarity))
        leaves = {name: given[name] for name in problem.needs}
        return native_call(forward, problem, given, leaves, self.context, self.extras)


def _gradients(problem: Problem, given: Tensors, output: torch.Tensor, twice: bool) -> dict[str, Array]:
    leaves = {name: given[name] for name in problem.needs}
    if not twice:
        return gradients_of(output, leaves, given["cotangent"])
    directions = {name: to_tensor(array, str(output.device)) for name, array in problem.direction().items()}
    return second_products(output, leaves, directions, given["cotangent"])


def _refilled(arena: Tensors, given: Tensors) -> Tensors:
    """The tensors that are kept for these forms, with the numbers of the given ones."""
    kept = {}
    for name, tensor in given.items():
        kept[name] = arena.setdefault(f"{name} {tuple(tensor.shape)} {tensor.dtype}", tensor.clone())
        kept[name].copy_(tensor)
    return kept


def numpy_op(
    function: Callable[..., Array | tuple[Array, ...]],
    *,
    extras: tuple[str, ...] = (),
    polarity: Polarity = Polarity.MAY_ATTEND,
    read_only: bool = False,
) -> NumpyOp:
    """A `run` for such a function of NumPy arrays; it has no gradients.

    Args:
        function: called as function(query, key, value, attn_mask=..., is_causal=..., scale=...).
        extras: what it returns after the output, by the names of `Result`.
        polarity: what True means in its boolean masks.
        read_only: whether it gets arrays that it cannot write into.
    """
    return NumpyOp(function, extras, polarity, read_only)


@dataclass(frozen=True, eq=False)
class NumpyOp:
    """The `run` that `numpy_op` makes, see there."""

    function: Callable[..., Array | tuple[Array, ...]]
    extras: tuple[str, ...]
    polarity: Polarity
    read_only: bool

    def __call__(self, problem: Problem, device: str) -> Result:
        """Answers the problem."""
        given = self._given(problem)
        # Where NaN and infinity go is what the suite compares; a warning about them is no answer.
        with np.errstate(all="ignore"), seeded(problem):
            before = array_forms(given)
            answer = self.function(*(given[n] for n in INPUTS), **op_options(problem, given, self.polarity))
            disturbed = differing(before, array_forms(given))
        output, *rest = answer if isinstance(answer, tuple) else (answer,)
        others: dict[str, Any] = {n: _checked(a) for n, a in zip(self.extras, rest, strict=True)}
        return Result(_checked(output), disturbed=disturbed, **others)

    def native(self, problem: Problem, device: str) -> Native:
        """The function's own call."""
        given = self._given(problem)
        forward = bound(self.function, *(given[n] for n in INPUTS), **op_options(problem, given, self.polarity))

        @contextmanager
        def around() -> Iterator[None]:
            with np.errstate(all="ignore"), seeded(problem):
                yield

        def result(answer: Any) -> Result:
            output, *rest = answer if isinstance(answer, tuple) else (answer,)
            others: dict[str, Any] = {n: _checked(a) for n, a in zip(self.extras, rest, strict=False)}
            return Result(_checked(output), **others)

        return Native(forward, result, given, around)

    def _given(self, problem: Problem) -> dict[str, Array]:
        return {n: _read_only(a) if self.read_only else a for n, a in problem.arrays().items()}


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _checked(array: Array) -> Array:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"a NumPy array was expected, got {type(array).__name__}")
    return array


def op_options(problem: Problem, given: Mapping[str, Any], polarity: Polarity) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name in ("attn_mask", "key_padding_mask"):
        if name in given:
            flipped = problem.arrays()[name].dtype.kind == "b" and polarity is Polarity.MASKED_OUT
            options[name] = ~given[name] if flipped else given[name]
    if problem.causal:
        options["is_causal"] = True
    if problem.scale is not None:
        options["scale"] = problem.scale
    return options | extra_options(problem, given)
