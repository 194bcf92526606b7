"""Comparison: a candidate's array with the reference, element by element, in units of the rounding bound."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import CandidateError, LostError
from attention_conformance.reference.expected import Expected
from attention_conformance.spec.cases import Sizes
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import DTYPES, Array
from attention_conformance.tests.report.verdict import FailureKind

Floats: TypeAlias = NDArray[np.float64]

AXES = {
    "output": {4: "sample {} head {} query {} component {}", 3: "sample {} query {} component {}"},
    "weights": {4: "sample {} head {} query {} key {}"},
    "averaged_weights": {3: "sample {} query {} key {}"},
    "log_sum_exp": {3: "sample {} head {} query {}"},
}
"""How an element of a part is named in messages, by the number of axes."""

RETURNED_AS = {
    "weights": Feature.WEIGHTS,
    "averaged_weights": Feature.AVERAGED_WEIGHTS,
    "log_sum_exp": Feature.LOG_SUM_EXP,
}
"""The features that promise parts other than output and gradients."""
OF_ROOM = 2**27
"""Numbers, a GiB of them in float64."""
OF_THE_SOFTMAX = ("weights", "averaged_weights", "log_sum_exp")
"""Results that may be returned in the precision in which they were computed."""
KEPT_IN = {
    "bfloat16": ("float32", "float64"),
    "float16": ("float32", "float64"),
    "float32": ("float64",),
    "float64": ("float32",),
}
"""The other dtypes in which they may be. In float64, numbers that float32 rounds are within the bound where computing
in float32 is claimed, and nowhere else."""


@dataclass(frozen=True)
class Comparison:
    """The outcome of one comparison.

    Attributes:
        worst: the largest error in units of the bound; infinity for a wrong shape, dtype, NaN or infinity.
        message: empty when everything is within the bounds.
        inconclusive: the bound is so wide that zeros, or the mean of the visible values, would pass as well.
        unspecified: anything is right; then nothing is conclusive.
        relative: the root mean square of an output's errors over that of the expected numbers, where both are finite;
            None for other parts, and where nothing is compared by a bound or zeros are expected.
        kind: what is wrong; None when everything is within the bounds.
        summary: what is wrong in words without numbers, where the check has such words.
        place: the line of the candidate's code that raised, as FILE:LINE.
    """

    worst: float
    message: str = ""
    inconclusive: bool = False
    unspecified: bool = False
    relative: float | None = None
    kind: FailureKind | None = None
    summary: str = ""
    place: str = ""

    def __post_init__(self) -> None:
        if bool(self.message) != (self.kind is not None):
            raise ValueError(f"a failure has a message and a kind, not {self.message!r} and {self.kind}")


def compare(part: str, got: Array | None, expected: Expected, dtype: str, known: float = 0.0) -> Comparison:
    """Compares an array of the candidate with the reference. NaN and infinity never match by accident.

    `known` is a share of the bounds, at most 1, that was reached before: of drifts only larger ones are worked out.
    """
    if got is None:
        return _failure(FailureKind.MISSING, f"{part} is claimed, but was not returned")
    if wrong := _form(part, got, expected.value.shape, dtype):
        return wrong
    values = np.where(expected.unspecified, np.nan, got.astype(np.float64))
    if expected.ceiling is not None:
        if wrong := _not_below(part, values, expected.value, expected.ceiling, got.dtype.name):
            return wrong
        values = np.where(np.isneginf(expected.value), -np.inf, values)
    if wrong := _non_finite(part, values, expected.value):
        return wrong
    ratios = error_ratios(values, expected)
    worst = float(ratios.max(initial=0.0))
    finite = _only_finite(values, expected)
    relative = _relative(*finite) if part == "output" else None
    if worst > 1.0:
        return Comparison(worst, _excess(part, values, expected, ratios), relative=relative, kind=FailureKind.VALUE)
    drift = _largest_drift(values, expected, max(known, worst))
    if drift > 1.0:
        return Comparison(drift, _drift(part, values, expected), relative=relative, kind=FailureKind.VALUE)
    nothing = expected.value.size > 0 and bool(expected.unspecified.all())
    inconclusive = nothing or _is_inconclusive(finite[1])
    return Comparison(max(worst, drift), inconclusive=inconclusive, unspecified=nothing, relative=relative)


def _failure(kind: FailureKind, message: str) -> Comparison:
    return Comparison(np.inf, message, kind=kind)


def error_ratios(values: Floats, expected: Expected) -> Floats:
    """|values - expected| / bound, elementwise; 0 where both are the same non-finite number, or anything is right."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        ratios: Floats = np.abs(values - expected.value) / expected.bound
        if np.isfinite(ratios).all() and ratios.min(initial=0.0) >= 0.0:
            return ratios
        same = (values == expected.value) | (np.isnan(values) & np.isnan(expected.value)) | expected.unspecified
        return np.where(same, 0.0, np.where(expected.bound > 0.0, ratios, np.inf))


def _only_finite(values: Floats, expected: Expected) -> tuple[Floats, Expected]:
    """Both where finite numbers are expected; they are there in the answer, too."""
    finite = np.isfinite(expected.value)
    if finite.all():
        return values, expected
    decoy = None if expected.decoy is None else expected.decoy[finite]
    return values[finite], Expected(expected.value[finite], expected.bound[finite], decoy)


def _relative(values: Floats, expected: Expected) -> float | None:
    """See `Comparison`."""
    reference = expected.value.ravel()
    error, size = values.ravel() - reference, float(reference @ reference)
    return math.sqrt(float(error @ error) / size) if size > 0.0 and expected.bound.any() else None


def _form(part: str, got: Array, shape: tuple[int, ...], dtype: str) -> Comparison | None:
    if got.shape != shape:
        return _failure(FailureKind.SHAPE, f"{part} has shape {got.shape}, expected {shape}")
    if got.dtype != DTYPES[dtype] and not (part in OF_THE_SOFTMAX and got.dtype.name in KEPT_IN[dtype]):
        message = f"{part} has dtype {got.dtype.name}, expected {dtype}, the dtype of the inputs"
        return _failure(FailureKind.DTYPE, message)
    return None


def _not_below(part: str, values: Floats, expected: Floats, ceiling: float, dtype: str) -> Comparison | None:
    """Where something finite stands for minus infinity; float16 holds no such number, and infinity instead."""
    below = np.isneginf(values) if dtype == "float16" else np.isfinite(values) & (values <= ceiling)
    wrong = np.isneginf(expected) & ~below
    if not wrong.any():
        return None
    index = _first(wrong)
    rule = f"expected a finite number of at most {ceiling:.3g}"
    return _failure(FailureKind.INFINITE, f"{element(part, index)} is {values[index]:.6g}, {rule}")


def _non_finite(part: str, values: Floats, expected: Floats) -> Comparison | None:
    if np.isfinite(values).all() and np.isfinite(expected).all():
        return None
    different_sign = np.isinf(values) & (values != expected)
    for kind, note, wrong in (
        (FailureKind.NAN, " (NaN)", np.isnan(values) != np.isnan(expected)),
        (FailureKind.INFINITE, " (infinite)", np.isinf(values) != np.isinf(expected)),
        (FailureKind.INFINITE, "", different_sign),
    ):
        if wrong.any():
            index = _first(wrong)
            message = f"{element(part, index)} is {values[index]:.6g}, expected {expected[index]:.6g}{note}"
            return _failure(kind, message)
    return None


def _excess(part: str, values: Floats, expected: Expected, ratios: Floats) -> str:
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratios)), ratios.shape))
    wrong = int((ratios > 1.0).sum())
    got, reference = values[index], expected.value[index]
    off = f", off by {abs(got - reference):.2g}" if f"{got:.6g}" == f"{reference:.6g}" else ""
    bound = f"{ratios[index]:.3g} x the bound {expected.bound[index]:.3g}" if expected.bound[index] else "exact"
    return (
        f"{element(part, index)} is {got:.9g}, expected {reference:.9g}{off} ({bound}); "
        f"{wrong} of {ratios.size} elements differ"
    )


def _largest_drift(values: Floats, expected: Expected, known: float) -> float:
    """In units of the aligned bounds; 0 where it is certain not to exceed what is known."""
    if not expected.aligned:
        return 0.0
    error = values - expected.value
    return max((each.ratio(error) for each in expected.aligned if not each.certainly_within(known, error)), default=0.0)


def _drift(part: str, values: Floats, expected: Expected) -> str:
    """Of an array whose elements are all within their bounds, and whose errors point in one direction."""
    error = values - expected.value
    ratio, along = max(((each.ratio(error), each) for each in expected.aligned), key=itemgetter(0))
    return (
        f"{part} is off by {along.share(error):+.2g} times {along.name}, all elements together "
        f"({ratio:.3g} x the bound {along.limit:.2g}); each alone is within its own bound"
    )


def element(part: str, index: tuple[int, ...]) -> str:
    """An element in the specification's words: "output of sample 0 head 1 query 3 component 2"."""
    pattern = AXES.get(part, {}).get(len(index))
    return f"{part} of {pattern.format(*index)}" if pattern else f"{part}[{', '.join(map(str, index))}]"


def _first(wrong: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(wrong)[0])


def _is_inconclusive(expected: Expected) -> bool:
    value, decoy = expected.value, expected.decoy
    if not value.any():
        return False
    if _would_pass(np.zeros_like(value), expected):
        return True
    return decoy is not None and _would_pass(decoy, expected)


def _would_pass(wrong: Floats, expected: Expected) -> bool:
    within = np.abs(wrong - expected.value) <= expected.bound
    return bool(within.all()) and _largest_drift(wrong, expected, 1.0) <= 1.0


def no_answer(error: CandidateError) -> Comparison:
    """The outcome of a comparison for which the candidate gave no usable answer."""
    if isinstance(error, LostError):
        lost = FailureKind.OUT_OF_MEMORY if error.out_of_memory else FailureKind.DIED
        kind = FailureKind.TIMED_OUT if error.late else lost
        return Comparison(np.inf, f"the candidate {error}", kind=kind, summary=str(kind))
    if error.exception:
        summary = f"raised {error.exception}"
        return Comparison(np.inf, str(error), kind=FailureKind.RAISED, summary=summary, place=error.place)
    return Comparison(np.inf, str(error), kind=FailureKind.WRONG_TYPE)


def lacks_room(sizes: Sizes, error: CandidateError) -> str:
    """Why an error shows nothing: who keeps a square of so many tokens needs more memory than it may take."""
    square = sizes.batch * sizes.num_heads * max(sizes.query_length, sizes.key_length) ** 2
    lacks = isinstance(error, LostError) and error.out_of_memory and square >= OF_ROOM
    return f"its own squares of {sizes} need more memory than it may take" if lacks else ""


def selected(got: Array | None, of: Callable[[Array], Array]) -> Array | None:
    """What a function, such as one that takes some rows, makes of an array, where it can be applied to it."""
    try:
        return None if got is None else of(got)
    except IndexError:
        return got  # its shape is wrong, and reported as such


def part_of(result: Result, part: str) -> Array | None:
    """`output`, `weights`, ..., or `gradients.NAME` of a result; None if it is not there."""
    if part.startswith("gradients."):
        return result.gradients.get(part.removeprefix("gradients."))
    array: Array | None = getattr(result, part)
    return array
