"""Native calls: an implementation's own computation alone, with everything that its adapter adds done before or after.

What is timed goes this way. It is the same function or module as the adapter's `run` calls, on the same numbers.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from attention_conformance.implementations.adapters.jax_programs import plainly
from attention_conformance.implementations.api.contract import Implementation, Result
from attention_conformance.spec.problem import Problem

WITHOUT_WEIGHTS = "without weights"
"""The alternative (see `Implementation`) that is timed where `run` returns weights only because they are checked."""


@dataclass(frozen=True, eq=False)
class Native:
    """A call made ready: inputs are native, the module is built and loaded, masks are converted.

    Attributes:
        bare: the forward pass, and the backward pass where the problem has a cotangent; to be called inside `around`.
        around: what has to be entered before, for one call or many: gradient mode, choice of a kernel.
        result: converts what a call has returned into a `Result`, outside of timing.
        inputs: the arrays or tensors that the call reads, by the names of the problem's arrays: other numbers may be
            written into query, key, value and cotangent between calls.
        passes: the forward pass, and the backward pass of what it has returned, which keeps its graph for another one;
            None where they cannot be called apart.
        direct: False where there is no native form: the call goes through the adapter's `run`, and takes its time.
    """

    bare: Callable[[], object]
    result: Callable[[Any], Result]
    inputs: Mapping[str, Any]
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    passes: tuple[Callable[[], Any], Callable[[Any], Any]] | None = None
    direct: bool = True

    def call(self) -> object:
        """One call on its own."""
        with self.around():
            return self.bare()


@runtime_checkable
class Prepares(Protocol):
    """A `run` that can separate its own work from that of the function or module behind it."""

    def native(self, problem: Problem, device: str) -> Native:
        """The call that it would make, made ready."""
        ...


@runtime_checkable
class Binds(Protocol):
    """A function that does something of the adapter's before it calls another: renames options, converts a mask."""

    def bound_call(self, *arguments: Any, **options: Any) -> Callable[[], Any]:
        """The call of that other one with all of it done; its answer may lack what only the adapter needs."""
        ...


def native(implementation: Implementation, problem: Problem, device: str) -> Native:
    """The implementation's answer to a problem as a call that is made ready; see `Native`.

    The call may keep the problem's memory, so the arrays have to be its own.
    """
    return natively(implementation.alternatives.get(WITHOUT_WEIGHTS, implementation.run), problem, device)


def natively(run: Any, problem: Problem, device: str) -> Native:
    """The call that a `run` would make, made ready; through the run itself where it cannot separate them."""
    made = run.native(problem, device) if isinstance(run, Prepares) else indirect(run, problem, device)
    return replace(made, around=partial(_plainly, made.around))


@contextmanager
def _plainly(around: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    with plainly(), around():
        yield


def indirect(run: Callable[[Problem, str], Result], problem: Problem, device: str) -> Native:
    """The call of a `run` that has no native form."""
    return Native(partial(run, problem, device), lambda answer: answer, problem.arrays(), direct=False)


def bound(function: Any, *arguments: Any, **options: Any) -> Callable[[], Any]:
    """The function's call with everything done beforehand that is not its own."""
    if isinstance(function, Binds):
        return function.bound_call(*arguments, **options)
    return partial(function, *arguments, **options)
