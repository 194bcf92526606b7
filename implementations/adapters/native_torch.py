"""Native calls of torch: the forward pass, and the backward pass where there is a cotangent, of ready tensors."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from attention_conformance.implementations.adapters.native import Native
from attention_conformance.implementations.adapters.op_options import seeded
from attention_conformance.implementations.adapters.results import output_of, result_of
from attention_conformance.implementations.adapters.tensors import (
    Tensors,
    require_readable,
    slopes,
    to_array,
    zeros_for_none,
)
from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.problem import Array, Problem


def native_call(
    forward: Callable[[], Any],
    problem: Problem,
    given: Tensors,
    leaves: Mapping[str, torch.Tensor],
    context: Callable[[], AbstractContextManager[object]],
    extras: Sequence[str],
    named: Callable[[dict[str, Array]], dict[str, Array]] = lambda gradients: gradients,
) -> Native:
    """A `Native` of a ready forward pass.

    Args:
        forward: answers with the output, or a tuple of output and extras.
        problem: the problem.
        given: its tensors.
        leaves: whose gradients are wanted.
        context: entered around the calls.
        extras: what follows the output, by the names of `Result`; an answer may have fewer.
        named: converts the gradients of the leaves into those of the problem's arrays.
    """
    wanted = problem.cotangent is not None

    @contextmanager
    def around() -> Iterator[None]:
        with seeded(problem), context(), torch.set_grad_enabled(wanted):
            yield

    def result(answer: Any) -> Result:
        answer, found = answer if wanted else (answer, ())
        require_readable(output_of(answer), given)
        gradients = named(zeros_for_none(leaves, found)) if wanted else {}
        return result_of(answer, extras, to_array, fewer=True, gradients=gradients)

    if not wanted:
        return Native(forward, result, given, around)
    held = list(leaves.values())

    def backward(answer: Any, keep: bool = True) -> tuple[torch.Tensor | None, ...]:
        require_readable(output_of(answer), given)
        return slopes(output_of(answer), held, given["cotangent"], keep)

    def both() -> tuple[Any, tuple[torch.Tensor | None, ...]]:
        answer = forward()
        return answer, backward(answer, keep=False)

    return Native(both, result, given, around, (forward, backward))
