"""Measuring: one implementation on one workload beside its baseline, from the first call to the verdict."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.global_state import kept_global_state
from attention_conformance.spec.cases import Case
from attention_conformance.tests.benchmarks.answer_checks import AnswerCheck, verified
from attention_conformance.tests.benchmarks.benchmark_run import Measurement, Rates, Speed
from attention_conformance.tests.benchmarks.contenders import Contender, contenders
from attention_conformance.tests.benchmarks.floor import beaten, floor_seconds, limits
from attention_conformance.tests.benchmarks.memory import peak
from attention_conformance.tests.benchmarks.paired_timing import Clock, Effort, Times, verdict
from attention_conformance.tests.benchmarks.required_work import Work, result_bytes, work
from attention_conformance.tests.benchmarks.workloads import Timed, suited

WARM = 3
"""Calls of each contender that do not count, after the first: the same number for all, and one if that was slow."""
SLOW = 0.5
"""Seconds of a first call that leave little to be warmed."""
SHORTEST = 5e-4
"""Seconds: calls are timed in blocks that take as long, or the clock's own cost and jitter would show."""
ROOM = 2**27
"""Bytes that the inputs of a block may take up together."""
LONGEST_BLOCK = 64
"""Calls of a block."""


class WrongError(Exception):
    """A contender raised, or cannot be timed; the message is one line."""


@dataclass(frozen=True)
class Conditions:
    """What is the same for all measurements of a run.

    Attributes:
        device: as torch spells it.
        rates: of the machine.
        effort: with each pair.
        seed: of the order within rounds.
    """

    device: str
    rates: Rates
    effort: Effort = field(default_factory=Effort)
    seed: int = field(default_factory=lambda: time.time_ns() % 2**32)


def measure(
    timed: Timed, implementation: Implementation, baseline: Implementation, conditions: Conditions
) -> Measurement:
    """Times the implementation on a workload, checks its answers, and says what follows."""
    empty = _empty(timed, implementation, baseline, conditions.device)
    cases = [suited(timed.workload, each.claims, timed.passes, timed.dtype) for each in (implementation, baseline)]
    unsupported = [case.reason for case in cases if isinstance(case, Unsupported)]
    if isinstance(cases[0], Unsupported):
        return replace(empty, verdict=Speed.UNSUPPORTED, reason=cases[0].reason)
    if unsupported or not isinstance(cases[1], Case):
        return replace(empty, verdict=Speed.UNSUPPORTED, reason=f"the baseline {baseline.name} {unsupported[0]}")
    try:
        with _kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a candidate may warn; what it answers is judged
            return _measured(empty, timed, (implementation, baseline), (cases[0], cases[1]), conditions)
    except WrongError as error:
        return replace(empty, verdict=Speed.ERROR, reason=str(error))


def _empty(timed: Timed, implementation: Implementation, baseline: Implementation, device: str) -> Measurement:
    return Measurement(
        workload=timed.workload.name,
        level=timed.workload.level,
        passes=timed.passes,
        dtype=timed.dtype,
        device=device,
        implementation=implementation.name,
        baseline=baseline.name,
        sizes=timed.workload.sizes,
        verdict=Speed.ERROR,
    )


def _measured(
    empty: Measurement,
    timed: Timed,
    pair: tuple[Implementation, Implementation],
    cases: tuple[Case, Case],
    conditions: Conditions,
) -> Measurement:
    entrants = {"candidate": (pair[0], cases[0]), "baseline": (pair[1], cases[1]), "same": (pair[1], cases[1])}
    with _named(pair[0].name):
        candidate, baseline, same = contenders(timed, conditions.device, entrants).values()
    task, first = work(candidate.problem, pair[0].claims.conventions), _first_call(candidate)
    calls = _warmed([candidate, baseline, same], 1 if first > SLOW else WARM)
    candidate.keeping = baseline.keeping = True
    clock = Clock(conditions.effort, np.random.default_rng(conditions.seed))
    times = clock.pair(_guarded(candidate), _guarded(baseline), _guarded(same))
    found = replace(
        empty,
        seconds=tuple(times.candidate),
        baseline_seconds=tuple(times.baseline.ravel()),
        calls=calls,
        noise=times.noise(),
        operations=task.operations,
        bytes=task.bytes,
        floor=floor_seconds(task, timed.dtype, conditions.rates),
        first_call=first,
        adapter=not candidate.direct,
    )
    return _judged(_with_memory(found, candidate), times, candidate, baseline, task, conditions)


def _judged(
    found: Measurement, times: Times, candidate: Contender, baseline: Contender, task: Work, conditions: Conditions
) -> Measurement:
    """No speed without right answers, of the candidate and of what it is compared with; and none that cannot be."""
    with _named(candidate.implementation.name):
        checked = verified(candidate)
    found = replace(found, worst=checked.worst, checks=checked.elements, checked=str(checked))
    if reason := _wrong(checked):
        return replace(found, verdict=Speed.WRONG, reason=reason)
    again = partial(limits, conditions.device, tuple(conditions.rates.matmul))
    if impossible := beaten(found.seconds, task, found.dtype, conditions.rates, again):
        return replace(found, verdict=Speed.IMPOSSIBLE, reason=impossible)
    speed = times.speed()
    if found.implementation == found.baseline:
        return replace(found, verdict=Speed.BASELINE, speed=speed)
    with _named(baseline.implementation.name):
        other = verified(baseline, seconds=0.0, gradients=False)
    if reason := _wrong(other):
        return replace(found, verdict=Speed.ERROR, reason=f"the baseline {found.baseline} is wrong: {reason}")
    return replace(found, verdict=verdict(speed, times.noise()), speed=speed)


def _wrong(checked: AnswerCheck) -> str:
    if checked.message:
        return checked.message
    return "" if checked.elements else f"no answer could be checked: {checked}"


def _first_call(contender: Contender) -> float:
    with _named(contender.implementation.name):
        return contender.block()


def _warmed(contenders: list[Contender], times: int) -> int:
    """Warms all alike, and gives each as many calls a block as the fastest needs; says how many."""
    took = [_warm(each, times) for each in contenders]
    size = sum(array.nbytes for each in contenders for array in each.problem.arrays().values())
    most = max(1, min(LONGEST_BLOCK, ROOM // max(1, size)))
    calls = min(most, max(1, int(np.ceil(SHORTEST / max(1e-9, min(took))))))
    if calls > 1:
        for each in contenders:
            each.widen(calls)
            _warm(each, times)
    return calls


def _warm(contender: Contender, times: int) -> float:
    with _named(contender.implementation.name):
        return min(contender.block() for _ in range(times))


def _with_memory(found: Measurement, candidate: Contender) -> Measurement:
    """One more call, watched."""
    problem = candidate.problem
    with _named(candidate.implementation.name):
        seen = peak(candidate.slots[0].call, candidate.device, result_bytes(problem))
    return replace(found, resident=seen.resident, allocated=seen.allocated)


def _guarded(contender: Contender) -> Callable[[int], float]:
    def block(number: int) -> float:
        with _named(contender.implementation.name):
            return contender.block(number)

    return block


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Whatever is raised inside becomes a line with the name: nothing takes a candidate out of its verdict."""
    try:
        yield
    except (KeyboardInterrupt, WrongError):
        raise
    except MemoryError as error:
        raise WrongError(f"{name}: there is no room: {error}") from error
    except BaseException as error:
        told = str(error).strip().splitlines() or ["no message"]
        raise WrongError(f"{name} raised {type(error).__name__}: {told[0]}") from error


@contextmanager
def _kept() -> Iterator[None]:
    """The state of the process, the number of threads among it, which no contender may change for the others."""
    threads = torch.get_num_threads()
    try:
        with kept_global_state():
            yield
        if torch.get_num_threads() != threads:
            raise WrongError(f"a call changed the number of threads from {threads} to {torch.get_num_threads()}")
    finally:
        torch.set_num_threads(threads)
