"""How the suite calls a function, so that a program without the suite can call it in the same way."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import lru_cache, wraps
from io import StringIO
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.global_state import kept_global_state
from attention_conformance.implementations.api.safe_call import CandidateError, guarded, safe_call
from attention_conformance.implementations.discovery.functions.functions import function_candidate
from attention_conformance.implementations.discovery.targets.loading import load_target
from attention_conformance.spec.optional import optional
from attention_conformance.spec.premises import Premises
from attention_conformance.spec.problem import Array, Problem

torch = optional("torch")


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """One call of a function of query, key and value.

    Attributes:
        tensors: whether its inputs were torch tensors, and not NumPy arrays.
        options: its keyword arguments, each as an array or as Python text.
        several: whether it returned a tuple.
        parts: of that tuple, by position: those that are arrays.
    """

    tensors: bool
    options: Mapping[str, str | Array]
    several: bool
    parts: Mapping[int, Array]


def recorded_call(
    target: str, settings: Mapping[str, str], problem: Problem, device: str, premises: Sequence[str] = ()
) -> RecordedCall:
    """The call that the suite makes for a problem.

    Raises:
        CandidateError: the target is no function, or its calls cannot be observed; the message has the reason.
    """
    last, implementation = guarded(lambda: _observed(target, tuple(settings.items()), device, tuple(premises)))
    safe_call(lambda: implementation.run(problem.fresh(), device))
    inputs, options, answer = last[-1]
    if not inputs:
        raise CandidateError("its inputs are passed by name")
    parts = dict(enumerate(answer)) if isinstance(answer, tuple) else {}
    arrays = {position: array for position, part in parts.items() if (array := _array(part)) is not None}
    given = {name: repr(value) if (array := _given(value)) is None else array for name, value in options.items()}
    return RecordedCall(isinstance(inputs[0], torch.Tensor), given, isinstance(answer, tuple), arrays)


Calls = list[tuple[tuple[Any, ...], Mapping[str, Any], Any]]
"""Inputs, options and answer of each call."""


@lru_cache(maxsize=16)
def _observed(
    target: str, settings: tuple[tuple[str, str], ...], device: str, premises: tuple[str, ...]
) -> tuple[Calls, Implementation]:
    """The record of the last call, and the function as an implementation that keeps it."""
    function: Any = load_target(target)
    if isinstance(function, Implementation):
        raise CandidateError("an Implementation cannot be called without this suite")
    if isinstance(function, type):
        raise CandidateError("it is a class, which the suite builds anew for each width")
    last: Calls = []

    @wraps(function)
    def observed(*inputs: Any, **options: Any) -> object:
        last[:] = [(inputs, options, None)]
        answer = function(*inputs, **options)
        last[:] = [(inputs, options, answer)]
        return answer

    return last, function_candidate("candidate", observed, dict(settings), device, Premises().assuming(premises))


def _given(value: object) -> Array | None:
    return _array(value) if isinstance(value, torch.Tensor | np.ndarray) else None


def _array(part: object) -> Array | None:
    from attention_conformance.implementations.adapters.tensors import to_array  # it imports torch

    convert: Callable[[Any], Array] = to_array if isinstance(part, torch.Tensor) else np.asarray
    return safe_call(lambda: convert(part)).value


def program_fails(text: str) -> bool:
    """Whether a program, which loads the candidate anew, ends with an exit status other than 0."""
    path = list(sys.path)
    try:
        with redirect_stdout(StringIO()), kept_global_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(text, {"__name__": "__script__"})
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return not isinstance(error, SystemExit) or bool(error.code)
    finally:
        sys.path[:] = path
        sys.modules.pop("candidate", None)
    return False
