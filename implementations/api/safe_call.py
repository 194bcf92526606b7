"""Calls into a candidate: each gives a usable answer, or a `CandidateError` that states why there is none."""

import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from dis import opmap
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from attention_conformance.implementations.api.contract import PathError, Result
from attention_conformance.implementations.api.global_state import kept_global_state
from attention_conformance.implementations.api.out_of_memory import is_out_of_memory
from attention_conformance.implementations.api.raised_calls import CURRENT, RaisedCalls
from attention_conformance.implementations.api.watched_calls import StoppedError, made
from attention_conformance.spec.problem import DTYPES, Array, Problem

Answer = TypeVar("Answer")

RETURNED = ("weights", "averaged_weights", "log_sum_exp")
"""The parts of a `Result` that may be None."""
GRADIENT = "the gradient of "


LONGEST, LONGEST_NAME = 1000, 100
"""Characters of an exception's message, and of a name of a type, that are read."""


def plain(text: str, most: int = LONGEST) -> str:
    """A text of a candidate on one line, without control characters and halves of characters, and not too long."""
    line = "".join(c if c.isprintable() else " " for c in text[:most])
    return line if len(text) <= most else f"{line}... ({len(text)} characters)"


NOT_OWN = [Path(__file__).parents[2], *(Path(path) for path in sysconfig.get_paths().values())]
"""Folders of this package, of installed ones, and of Python's own."""
EXITS = (SystemExit, KeyboardInterrupt, GeneratorExit)
"""What ends a process or a generator, and refuses no input."""
EXIT_NAMES = frozenset(each.__name__ for each in EXITS)
LIBRARIES = {"torch", "numpy", "jax", "jaxlib", "numba", "attention_conformance"}
"""Packages in which an error is no statement of the candidate."""


class CandidateError(Exception):
    """The candidate raised, or returned something that cannot be compared; the message is one line.

    Attributes:
        exception: the class name of what it raised; empty where it returned something unusable.
        place: the innermost line of its own code that was running, as FILE:LINE; empty where none is known.
    """

    def __init__(self, message: str, exception: str = "", place: str = "") -> None:
        super().__init__(plain(message))
        self.exception = plain(exception, LONGEST_NAME)
        self.place = plain(place)


class LostError(CandidateError):
    """The candidate's process has died, or gave no answer in time; the message states which, and how.

    Attributes:
        late: whether it gave no answer in time.
        out_of_memory: whether it had too little memory.
        fault: whether it has lost the accelerator, and lives.
    """

    def __init__(self, message: str, late: bool = False, out_of_memory: bool = False, fault: bool = False) -> None:
        super().__init__(message)
        self.late = late
        self.out_of_memory = out_of_memory
        self.fault = fault


def guarded(call: Callable[[], Answer]) -> Answer:
    """What a call into a candidate returns; warnings of the candidate are ignored.

    Raises:
        CandidateError: it raised anything but KeyboardInterrupt and `PathError`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return made(call)
    except (KeyboardInterrupt, CandidateError, PathError, StoppedError):
        raise
    except BaseException as error:
        # SystemExit, or pytest's own skip and exit, must not let a candidate out of its verdict.
        kind = kind_of(error)
        message = f"raised {kind}: {_first_line(error) or 'no message'}"
        if isinstance(error, EXITS) and (first := CURRENT.get()) is not None:
            first.note_exit(error_line(error))
        raise CandidateError(message, kind, place_of(error)) from error


def restored(call: Callable[[], Answer]) -> Answer:
    """The same as `guarded`; afterwards the global state is what it was before."""
    with kept_global_state(), np.errstate(all="ignore"):
        return guarded(call)


@dataclass(frozen=True)
class CallOutcome(Generic[Answer]):
    """What one call gave: its value, or its exception in one line.

    Attributes:
        refused: whether a statement of the candidate's own raised the exception; see `by_own_statement`.
        not_offered: whether that statement says so by a NotImplementedError.
        lacks_memory: whether the exception says that there was too little memory.
        wanted: the attribute of an array that was read and that no array has: an object of another kind was expected.
    """

    value: Answer | None = None
    error: str = ""
    refused: bool = False
    not_offered: bool = False
    lacks_memory: bool = False
    wanted: str = ""


def safe_call(call: Callable[[], Answer]) -> CallOutcome[Answer]:
    """The outcome of a call into a candidate, after which the global state is what it was before.

    Only KeyboardInterrupt is raised.
    """
    try:
        return CallOutcome(restored(call))
    except (CandidateError, PathError) as error:
        cause = error.__cause__ or error
        lacking = isinstance(cause, AttributeError) and hasattr(getattr(cause, "obj", None), "shape")
        wanted = str(getattr(cause, "name", "")) if lacking else ""
        refused = by_own_statement(cause)
        not_offered = refused and isinstance(cause, NotImplementedError)
        full = is_out_of_memory(cause)
        return CallOutcome(None, error_line(cause), refused, not_offered, full, wanted)


def repeatable(call: Callable[[], Answer]) -> CallOutcome[Answer]:
    """The same for a call that makes its own inputs: one that raises among the first calls is made again after them."""
    outcome, first = safe_call(call), CURRENT.get()
    if first is not None and outcome.error and not outcome.lacks_memory:
        first.note(outcome.error, call)
    return outcome


def differing(first: RaisedCalls) -> tuple[str, ...]:
    """The exceptions of first calls that raise nothing when they are made once more."""
    lines = (line for line, call in first.chosen if not safe_call(call).error)
    return tuple(dict.fromkeys(lines))


def by_own_statement(error: BaseException) -> bool:
    """Whether a `raise` or `assert` of the candidate raised it, and no call that the candidate makes of a library."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    if place is None or place.tb_frame.f_code.co_code[place.tb_lasti] != opmap["RAISE_VARARGS"]:
        return False
    return str(place.tb_frame.f_globals.get("__name__")).partition(".")[0] not in LIBRARIES


def place_of(error: BaseException) -> str:
    """The innermost line of a candidate's own file that was running, as FILE:LINE; empty if there is none."""
    found, place = "", error.__traceback__
    while place is not None:
        file = place.tb_frame.f_code.co_filename
        if _is_own(file):
            found = shown_place(Path(file), place.tb_lineno)
        place = place.tb_next
    return found


@lru_cache(maxsize=4096)
def _is_own(file: str) -> bool:
    """Whether a file of code is the candidate's; cached, as it is looked up for each frame of each exception."""
    path = Path(file)
    return path.suffix == ".py" and not any(path.is_relative_to(folder) for folder in NOT_OWN)


def shown_place(path: Path, line: int) -> str:
    """A line of a file as FILE:LINE, from the current folder where it lies in that."""
    return f"{_from_here(path)}:{line}"


def _from_here(path: Path) -> Path:
    with suppress(OSError):  # the candidate may have removed the current folder
        here = Path.cwd()
        return path.relative_to(here) if path.is_relative_to(here) else path
    return path


def kind_of(error: BaseException) -> str:
    """The name of its class, which the class itself cannot change."""
    return plain(type.__dict__["__name__"].__get__(type(error)), LONGEST_NAME)


def error_line(error: BaseException) -> str:
    """An exception in one line: its type and the first line of its message, if it has one."""
    line = _first_line(error)
    kind = kind_of(error)
    return f"{kind}: {plain(line)}" if line else kind


def answer(run: Callable[[Problem, str], object], problem: Problem, device: str) -> Result:
    """The result of one call, all of whose parts are plain arrays of real numbers.

    Raises:
        CandidateError: the call raised, or returned anything else.
    """
    return guarded(lambda: _usable(run(problem, device)))


def function_answer(name: str, function: Callable[..., object], arguments: tuple[object, ...]) -> Array:
    """What a plain function of the candidate returns: an array in one of the suite's dtypes.

    Raises:
        CandidateError: it raised, or returned anything else.
    """
    returned = guarded(lambda: function(*arguments))
    if type(returned) is not np.ndarray or returned.dtype.name not in DTYPES:
        kind = f"an array of {returned.dtype}" if isinstance(returned, np.ndarray) else type(returned).__name__
        raise CandidateError(f"{name} returned {kind}, not an array of one of {', '.join(DTYPES)}")
    return returned


def _usable(result: object) -> Result:
    if not isinstance(result, Result):
        raise CandidateError(f"returned {type(result).__name__}, not a Result")
    usable = dict[str, Array]()
    for part, array in _parts(result):
        if type(array) is not np.ndarray:
            raise CandidateError(f"returned {part} as {type(array).__name__}, not as a NumPy array")
        if array.dtype.kind not in "biuf" and not array.dtype.name.startswith(("float", "bfloat")):
            raise CandidateError(f"returned {part} in {array.dtype}, not in real numbers")
        usable[part] = _quiet(array)
    others = {name: _usable(other) for name, other in result.others.items()}
    gradients = {name: usable.get(f"{GRADIENT}{name}", array) for name, array in result.gradients.items()}
    returned: dict[str, Any] = {part: usable[part] for part in ("output", *RETURNED) if part in usable}
    return replace(result, others=others, gradients=gradients, **returned)


def _quiet(array: Array) -> Array:
    """The array, with NaN that raise no flag where they are converted: memory never written may hold others."""
    stored = array[tuple(slice(None) if step else slice(1) for step in array.strides)]
    absent = np.isnan(stored) if array.dtype.kind == "f" else None
    if absent is None or not absent.any():
        return array
    return np.broadcast_to(np.where(absent, array.dtype.type(np.nan), stored), array.shape)


def _parts(result: Result) -> Iterator[tuple[str, object]]:
    if not isinstance(result.gradients, Mapping) or not isinstance(result.others, Mapping):
        raise CandidateError("returned a Result whose gradients or others are no mapping")
    yield "output", result.output
    yield from ((part, array) for part in RETURNED if (array := getattr(result, part)) is not None)
    yield from ((f"{GRADIENT}{name}", array) for name, array in result.gradients.items() if array is not None)


def _first_line(error: BaseException) -> str:
    try:
        lines = str(error)[:LONGEST].strip().splitlines()
    except KeyboardInterrupt:
        raise
    except BaseException:  # an exception of the candidate's own, which may be as broken as the candidate
        lines = []
    return lines[0] if lines else ""
