"""A call that is interrupted at its lines by a whole call in another thread, as a scheduler may do it."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, Thread
from types import CodeType, FrameType
from typing import Any

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.api.safe_call import LIBRARIES, CandidateError

LINES = 48
"""Interruptions of one call."""
TIMES = 2
"""Of a line: loops and helpers are left early, so that the lines after them are reached."""
SPENT = 5.0
"""Seconds of interrupting calls after which there are no more of them: some candidates are interpreted."""
SUITE = __name__.partition(".")[0]
OTHERS = (
    *(f"{SUITE}.implementations.{room}." for room in ("adapters", "api", "discovery", "worker")),
    f"{SUITE}.spec.",
)
"""Modules of the suite that are no candidate's."""
PASSED_OVER = (LIBRARIES - {SUITE}) | sys.stdlib_module_names
INTERPRETER = "triton.runtime.interpreter"
"""It keeps the number of the program, and what it puts in the place of the language, for the whole process."""
BLOCKED = 0.5
"""Seconds after which an interrupting call is taken to wait for a lock that the interrupted one holds."""
STUCK = 60.0
"""Seconds after which a call that nothing holds up any more is taken not to end."""

Run = Callable[[], Result]


class _Call(Thread):
    """One call in a thread of its own, which keeps its result or its exception."""

    def __init__(self, run: Run, trace: Callable[..., Any] | None = None) -> None:
        super().__init__(daemon=True)
        self.made, self.trace = run, trace
        self.result: Result | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        sys.settrace(self.trace)
        try:
            self.result = self.made()
        except BaseException as error:
            self.error = error
        finally:
            sys.settrace(None)

    def answer(self) -> Result:
        """Waits for the result, or raises what the call has raised."""
        self.join(STUCK)
        if self.error is not None:
            raise self.error
        if self.result is None:
            raise CandidateError("a call does not end where another thread makes one")
        return self.result


def of_candidate(frame: FrameType) -> bool:
    """Whether the code that runs there is a candidate's."""
    name = str(frame.f_globals.get("__name__"))
    return name.partition(".")[0] not in PASSED_OVER and not name.startswith(OTHERS)


@contextmanager
def _kernels_in_turn() -> Iterator[None]:
    """Kernels that Triton interprets run one after another: its interpreter cannot be entered by two threads."""
    executor = getattr(sys.modules.get(INTERPRETER), "GridExecutor", None)
    if executor is None:
        yield
        return
    launched, lock = executor.__call__, RLock()

    def one_at_a_time(*arguments: Any, **named: Any) -> Any:
        with lock:
            return launched(*arguments, **named)

    executor.__call__ = one_at_a_time
    try:
        yield
    finally:
        executor.__call__ = launched


def interrupted(run: Run, by: Run) -> tuple[Result, Result]:
    """The answer of a call, and that of the last of the calls that have interrupted it.

    The interrupting ones end before it goes on, unless they wait for it. Code that is not Python is not interrupted.

    Raises:
        CandidateError: a call does not end.
    """
    with _kernels_in_turn():
        return _interrupted(run, by)


def _interrupted(run: Run, by: Run) -> tuple[Result, Result]:
    calls, start, times = [_Call(by)], time.monotonic(), Counter[tuple[CodeType, int]]()
    calls[0].start()
    calls[0].join(STUCK)

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        more = len(calls) <= LINES and time.monotonic() - start < SPENT
        if not more or not of_candidate(frame):
            return None
        times[frame.f_code, frame.f_lineno] += event == "line"
        again = times[frame.f_code, frame.f_lineno] > TIMES
        if event == "line" and not again and not calls[-1].is_alive() and calls[-1].error is None:
            calls.append(_Call(by))
            calls[-1].start()
            calls[-1].join(BLOCKED)
        return trace

    outer = _Call(run, trace)
    outer.start()
    return outer.answer(), calls[-1].answer()
