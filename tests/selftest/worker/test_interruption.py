"""A call is interrupted between its lines by whole calls in another thread."""

import sys
from threading import Event, Lock, Thread
from types import ModuleType

import numpy as np
import pytest

from attention_conformance.implementations.api.contract import Claims, Implementation, Result
from attention_conformance.implementations.worker import interruption, observer
from attention_conformance.implementations.worker.interruption import interrupted
from attention_conformance.implementations.worker.observer import LocalObserver
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem

SHARED: dict[str, float] = {}
LOCK = Lock()


def stored(number: float) -> Result:
    SHARED["number"] = number
    return Result(np.full(1, SHARED["number"]))


def local(number: float) -> Result:
    held = number
    return Result(np.full(1, held))


def locked(number: float) -> Result:
    with LOCK:
        SHARED["number"] = number
        return Result(np.full(1, SHARED["number"]))


def failing(number: float) -> Result:
    raise ValueError(str(number))


def test_what_calls_share_is_overwritten() -> None:
    first, later = interrupted(lambda: stored(1.0), lambda: stored(2.0))
    assert (first.output[0], later.output[0]) == (2.0, 2.0)


def test_what_a_call_keeps_for_itself_is_not() -> None:
    first, later = interrupted(lambda: local(1.0), lambda: local(2.0))
    assert (first.output[0], later.output[0]) == (1.0, 2.0)


def test_a_call_that_waits_for_a_lock_ends_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruption, "BLOCKED", 0.01)
    first, later = interrupted(lambda: locked(1.0), lambda: locked(2.0))
    assert (first.output[0], later.output[0]) == (1.0, 2.0)


def test_exceptions_are_those_of_the_call() -> None:
    with pytest.raises(ValueError, match=r"^2\.0$"):
        interrupted(lambda: local(1.0), lambda: failing(2.0))
    with pytest.raises(ValueError, match=r"^1\.0$"):
        interrupted(lambda: failing(1.0), lambda: local(2.0))


def test_a_thread_that_goes_on_writes_into_what_was_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "GOING_ON", 60.0)
    returned: list[Result] = []
    later = Event()

    def emptied(result: Result) -> None:
        later.wait()
        result.output[...] = 0.0

    def run(problem: Problem, device: str) -> Result:
        result = Result(np.ones(2))
        if returned:
            later.set()
        else:
            Thread(target=emptied, args=(result,)).start()
        returned.append(result)
        return result

    problem = build(Case(), "float64")
    own = LocalObserver(Implementation("returns too early", Claims(Scope.OP, frozenset({Feature.CORE})), run))
    assert own.overwritten(problem, [problem], "cpu") == (True, ())


class Executor:
    """The least of Triton's interpreter: which program runs is a state of the process."""

    def __call__(self, number: float) -> Result:
        return stored(number)


def test_kernels_that_are_interpreted_run_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = ModuleType(interruption.INTERPRETER)
    interpreter.__dict__["GridExecutor"] = Executor
    monkeypatch.setitem(sys.modules, interruption.INTERPRETER, interpreter)
    monkeypatch.setattr(interruption, "BLOCKED", 0.01)
    launched, launch = Executor.__call__, Executor()
    first, later = interrupted(lambda: launch(1.0), lambda: launch(2.0))
    assert (first.output[0], later.output[0]) == (1.0, 2.0)
    assert Executor.__call__ is launched
