"""NumPy adapters: a function of NumPy arrays becomes an implementation, in one line."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from attention_conformance.implementations.adapters.native import Native, bound
from attention_conformance.implementations.adapters.op_options import inputs_of, op_options, seeded
from attention_conformance.implementations.adapters.results import (
    array_forms,
    changing_with_copies,
    differing,
    result_of,
)
from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.conventions import Polarity
from attention_conformance.spec.problem import Array, Problem


@dataclass(frozen=True, eq=False)
class NumpyOp:
    """A `run` for a function of NumPy arrays, see `torch_op`; it has no gradients.

    Attributes:
        function: called as function(query, key, value, attn_mask=..., is_causal=..., scale=...).
        extras: what it returns after the output, by the names of `Result`.
        polarity: what True means in its boolean masks.
        implied: options that it is not given, because it always does what they state, such as `is_causal`.
        read_only: whether it gets arrays that it cannot write into.
    """

    function: Callable[..., Array | tuple[Array, ...]]
    _: KW_ONLY
    extras: tuple[str, ...] = ()
    polarity: Polarity = Polarity.MAY_ATTEND
    implied: tuple[str, ...] = ()
    read_only: bool = False

    def __call__(self, problem: Problem, device: str) -> Result:
        """Answers the problem."""
        given = self._given(problem)
        with _quiet(problem), changing_with_copies(problem):
            before = array_forms(given)
            answer = self.function(*inputs_of(given), **self._options(problem, given))
            disturbed = differing(before, array_forms(given))
        return result_of(answer, self.extras, _checked, disturbed=disturbed)

    def native(self, problem: Problem, device: str) -> Native:
        """The function's own call."""
        given = self._given(problem)
        forward = bound(self.function, *inputs_of(given), **self._options(problem, given))
        return Native(
            forward, lambda answer: result_of(answer, self.extras, _checked, fewer=True), given, lambda: _quiet(problem)
        )

    def _given(self, problem: Problem) -> dict[str, Array]:
        return {n: _read_only(a) if self.read_only else a for n, a in problem.arrays().items()}

    def _options(self, problem: Problem, given: Mapping[str, Array]) -> dict[str, Any]:
        return op_options(problem, given, self.polarity, self.implied)


numpy_op = NumpyOp
"""The name by which adapters call it."""


@contextmanager
def _quiet(problem: Problem) -> Iterator[None]:
    """Where NaN and infinity go is what the suite compares: NumPy's warnings about them are switched off."""
    with np.errstate(all="ignore"), seeded(problem):
        yield


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


def _checked(array: Array) -> Array:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"a NumPy array was expected, got {type(array).__name__}")
    return array
