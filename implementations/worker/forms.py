"""How problems, results and claims are written as messages, and read back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from attention_conformance.implementations.api.contract import Claims, ExpectedFailure, PathError, Result
from attention_conformance.implementations.api.safe_call import RETURNED, CandidateError
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.worker.limits import LONGEST_REASON
from attention_conformance.implementations.worker.output import shortened
from attention_conformance.implementations.worker.wire import Message
from attention_conformance.spec.cases import Layout, Sharing, from_data
from attention_conformance.spec.features import NOTHING, Extension, Scope
from attention_conformance.spec.problem import HELD, Array, Problem, packed

PLAIN = ("num_heads", "causal", "scale")
"""The fields of a problem that stand in a message as they are."""
DEFAULTS = {each.name: each.default for each in fields(Extension)}
"""The options of a problem that is not extended."""


def problem_message(problem: Problem, **request: Any) -> Message:
    """A problem, with the memory layout of each array, and more fields of the request."""
    arrays = problem.arrays()
    plain = {name: getattr(problem, name) for name in PLAIN}
    return Message(
        {
            **request,
            **plain,
            "scope": problem.scope,
            "needs": problem.needs,
            "sharing": problem.sharing,
            "layout": problem.layout,
            "extension": _in_use(problem.extension),
            "parameters": list(problem.parameters),
            "extras": list(problem.extras),
            "strides": {name: form for name, array in arrays.items() if (form := _memory(array)) is not None},
        },
        arrays,
    )


def _in_use(extension: Extension) -> dict[str, Any]:
    if extension is NOTHING:
        return {}
    return {name: given for name, default in DEFAULTS.items() if (given := getattr(extension, name)) != default}


def problem_of(message: Message) -> Problem:
    """The problem of a message, its arrays laid out in memory as they were."""
    given = message.fields
    arrays = {name: _laid_out(array, given["strides"].get(name)) for name, array in message.arrays.items()}
    sharing = Sharing(given["sharing"])
    key = arrays["query"] if sharing.key_is_query else arrays["key"]
    optional: dict[str, Any] = {name: arrays[name] for name in HELD[3:] if name in arrays}
    problem = Problem(
        scope=Scope(given["scope"]),
        query=arrays["query"],
        key=key,
        value=key if sharing.value_is_key else arrays["value"],
        sharing=sharing,
        layout=Layout(given["layout"]),
        needs=tuple(given["needs"]),
        extension=from_data(Extension, given["extension"], "extension") if given["extension"] else NOTHING,
        parameters={name: arrays[name] for name in given["parameters"]},
        extras={name: arrays[name] for name in given["extras"]},
        **optional,
        **{name: given[name] for name in PLAIN},
    )
    return problem if problem.layout is not Layout.PACKED else problem.with_arrays(packed(problem.arrays()))


def _memory(array: Array) -> tuple[list[int], int] | None:
    """The strides in bytes, and where in its buffer the array starts; None: contiguous, from the beginning."""
    start = array.ctypes.data - array.base.ctypes.data if isinstance(array.base, np.ndarray) else 0
    inside = isinstance(array.base, np.ndarray) and array.base.nbytes > array.nbytes
    if array.flags.c_contiguous and not (inside and start):
        return None
    return list(array.strides), start if array.flags.c_contiguous else 0


def _laid_out(array: Array, memory: tuple[list[int], int] | None) -> Array:
    if memory is None:
        return array
    strides, start = memory
    reach = [(extent - 1) * stride for extent, stride in zip(array.shape, strides, strict=True) if extent]
    before = -sum(min(0, each) for each in reach)
    size = start + before + sum(max(0, each) for each in reach) + array.itemsize
    buffer = np.zeros(-(-size // array.itemsize), array.dtype)
    view = np.ndarray(array.shape, array.dtype, buffer, start + before, tuple(strides))
    view[...] = array
    return view


def result_message(result: Result, **answer: Any) -> Message:
    """A result, with more fields of the answer."""
    others = {name: result_message(other) for name, other in result.others.items()}
    arrays = dict(_arrays(result))
    for name, other in others.items():
        arrays |= {f"others.{name}.{part}": array for part, array in other.arrays.items()}
    named = {name: other.fields for name, other in others.items()}
    return Message({**answer, "disturbed": list(map(str, result.disturbed)), "others": named}, arrays)


def _arrays(result: Result) -> Iterator[tuple[str, Array]]:
    yield "output", result.output
    yield from ((part, array) for part in RETURNED if (array := getattr(result, part)) is not None)
    yield from ((f"gradients.{name}", each) for name, each in result.gradients.items() if each is not None)


def result_of(answer: Mapping[str, Any], arrays: Mapping[str, Array]) -> Result:
    """The result of an answer."""
    others = answer.get("others", {})
    return Result(
        output=arrays["output"],
        gradients=_below("gradients.", arrays),
        disturbed=tuple(answer.get("disturbed", ())),
        others={name: result_of(part, _below(f"others.{name}.", arrays)) for name, part in others.items()},
        **{part: arrays[part] for part in RETURNED if part in arrays},
    )


def _below(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def claims_fields(claims: Claims) -> dict[str, Any]:
    """Claims as plain values, without `fit`."""
    return {
        "scope": claims.scope,
        "features": sorted(claims.features),
        "conventions": dict(claims.conventions.items()),
        "dtypes": list(claims.dtypes),
        **({"premises": list(settings)} if (settings := claims.premises.settings()) else {}),
        **({"alone": True} if claims.alone else {}),
    }


def expected_failure_fields(entry: ExpectedFailure) -> dict[str, Any]:
    """An expected failure as plain values."""
    return {each.name: getattr(entry, each.name) for each in fields(entry)}


def checked(answer: Message) -> Message:
    """An answer that is none of the errors.

    Raises:
        CandidateError, PathError, TargetError: what the worker reports.
    """
    fields = answer.fields
    if "unusable" in fields:
        raise TargetError(shortened(fields["unusable"], LONGEST_REASON))
    if "left_path" in fields:
        raise PathError(shortened(fields["left_path"]))
    if "error" in fields:
        places = (shortened(fields.get(name, "")) for name in ("exception", "place"))
        raise CandidateError(shortened(fields["error"]), *places)
    return answer
