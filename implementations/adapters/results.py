"""The `Result` of what a function or module returned: the output alone, or a tuple of the output and extras."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.problem import Array, Problem


def output_of(answer: Any) -> Any:
    """The output alone."""
    return answer[0] if isinstance(answer, tuple) else answer


def result_of(
    answer: Any, extras: Sequence[str], to_array: Callable[[Any], Array], *, fewer: bool = False, **fields: Any
) -> Result:
    """The answer as a `Result` of arrays.

    Args:
        answer: the output, or a tuple of the output and extras.
        extras: the names in `Result` of what follows the output.
        to_array: converts the output and each extra to an array.
        fewer: whether the answer may have fewer extras than are named.
        fields: other fields of the `Result`.

    Raises:
        ValueError: the answer has another number of extras.
    """
    output, *rest = answer if isinstance(answer, tuple) else (answer,)
    named: dict[str, Any] = {name: to_array(extra) for name, extra in zip(extras, rest, strict=not fewer)}
    return Result(to_array(output), **named, **fields)


def array_forms(given: Mapping[str, Array]) -> dict[str, object]:
    """What a call could change of arrays without touching a number, and how NumPy treats errors."""
    found: dict[str, object] = {name: (array.shape, array.strides) for name, array in given.items()}
    return found | {"error handling of numpy": np.geterr()}


def differing(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    """The names whose forms are not the same any more."""
    return tuple(name for name, form in before.items() if after[name] != form)


CHANGED: ContextVar[set[str] | None] = ContextVar("the masks whose copies a call has changed", default=None)


@contextmanager
def changing_with_copies(problem: Problem) -> Iterator[None]:
    """A call that changes the copy of a mask which it gets, such as the inverse, changes the mask of its caller.

    That gets other numbers, as nothing but whether it has changed is compared. One whose gradient is needed does not.
    """
    names = set[str]()
    token = CHANGED.set(names)
    try:
        yield
    finally:
        CHANGED.reset(token)
        arrays = problem.arrays()
        for array in (arrays[name] for name in names - {*problem.needs} if name in arrays):
            if array.flags.writeable:
                array[...] = not array.any()


@contextmanager
def kept(copies: Mapping[str, Any]) -> Iterator[None]:
    """Notes the masks by these names whose copies are changed meanwhile."""
    names = CHANGED.get()
    watched = {} if names is None else {name: each for name, each in copies.items() if _may_change(each)}
    before = {name: each.copy() if isinstance(each, np.ndarray) else each.clone() for name, each in watched.items()}
    yield
    if names is not None:
        names |= {name for name, each in watched.items() if not _same(before[name], each)}


def _may_change(copy: Any) -> bool:
    """Whether it is an array of NumPy, or a tensor of torch that needs no gradient."""
    return isinstance(copy, np.ndarray) or (hasattr(copy, "clone") and not copy.requires_grad)


def _same(before: Any, after: Any) -> bool:
    """Whether the numbers are the same; within a mapping of torch's nothing can be compared."""
    if isinstance(after, np.ndarray):
        return bool(np.array_equal(before, after))
    with suppress(RuntimeError):
        return bool(before.equal(after))
    return True
