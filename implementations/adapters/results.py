"""The `Result` of what a function or module returned: the output alone, or a tuple of the output and extras."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Result
from attention_conformance.spec.problem import Array


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
