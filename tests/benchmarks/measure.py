"""Measures one implementation on one workload in pairs with its baseline, from the first call to the verdict."""

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.global_state import kept_global_state
from attention_conformance.implementations.worker.memory import peak, result_bytes
from attention_conformance.spec.cases import Case
from attention_conformance.tests.benchmarks.answer_checks import AnswerCheck, verified
from attention_conformance.tests.benchmarks.benchmark_run import Measurement, Rates, Speed
from attention_conformance.tests.benchmarks.contenders import Contender, contenders
from attention_conformance.tests.benchmarks.floor import faster_than_possible, floor_seconds, limits
from attention_conformance.tests.benchmarks.paired_timing import Clock, Effort, Times, verdict
from attention_conformance.tests.benchmarks.required_work import Work, required_work
from attention_conformance.tests.benchmarks.workloads import Timed, suited

WARM_UP = 3
"""Untimed calls of each contender after the first call; one where that was slow."""
SLOW = 0.5
"""Seconds of a first call above which one warm-up call is sufficient."""
SHORTEST = 5e-4
"""Seconds of a timed block at least: in shorter ones the clock's own cost and jitter would show."""
BLOCK_BYTES = 2**27
"""Limit of the inputs of a block together."""
LONGEST_BLOCK = 64
"""Largest number of calls in a block."""


class ContenderError(Exception):
    """A contender raised, or cannot be timed; the message is one line."""


@dataclass(frozen=True)
class Conditions:
    """The conditions of all measurements of a run.

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
    """Times the implementation on a workload, checks its answers, and gives the verdict."""
    empty = no_measurement(timed, implementation, baseline, conditions.device)
    own, other = (suited(timed.workload, i.claims, timed.passes, timed.dtype) for i in (implementation, baseline))
    if isinstance(own, Unsupported):
        return replace(empty, verdict=Speed.UNSUPPORTED, reason=own.reason)
    if isinstance(other, Unsupported):
        return replace(empty, verdict=Speed.UNSUPPORTED, reason=f"the baseline {baseline.name} {other.reason}")
    try:
        with _global_state(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a candidate may warn; only its answers count
            return _measured(empty, timed, (implementation, baseline), (own, other), conditions)
    except ContenderError as error:
        return replace(empty, verdict=Speed.ERROR, reason=str(error))


def no_measurement(timed: Timed, implementation: Implementation, baseline: Implementation, device: str) -> Measurement:
    """An error without a reason, in place of a measurement."""
    workload = timed.workload
    setting = (workload.name, workload.level, timed.passes, timed.dtype, device)
    return Measurement(*setting, implementation.name, baseline.name, workload.sizes, Speed.ERROR)


def _measured(
    empty: Measurement,
    timed: Timed,
    pair: tuple[Implementation, Implementation],
    cases: tuple[Case, Case],
    conditions: Conditions,
) -> Measurement:
    entries = {"candidate": (pair[0], cases[0]), "baseline": (pair[1], cases[1]), "same": (pair[1], cases[1])}
    with _named(pair[0].name):
        candidate, baseline, same = contenders(timed, conditions.device, entries).values()
    required, first = required_work(candidate.problem, pair[0].claims.conventions), _block(candidate)
    calls = _warmed([candidate, baseline, same], 1 if first > SLOW else WARM_UP)
    candidate.keeping = baseline.keeping = True
    clock = Clock(conditions.effort, np.random.default_rng(conditions.seed))
    times = clock.pair(*(partial(_block, each) for each in (candidate, baseline, same)))
    measurement = replace(
        empty,
        seconds=tuple(times.candidate),
        baseline_seconds=tuple(times.baseline.ravel()),
        calls=calls,
        noise=times.noise(),
        operations=required.operations,
        bytes=required.bytes,
        floor=floor_seconds(required, timed.dtype, conditions.rates),
        first_call=first,
        adapter=not candidate.direct,
    )
    with _named(pair[0].name):
        growth = peak(candidate.slots[0].call, candidate.device, result_bytes(candidate.problem))
    measurement = replace(measurement, resident=growth.resident, allocated=growth.allocated)
    return _judged(measurement, times, candidate, baseline, required, conditions)


def _judged(
    measurement: Measurement,
    times: Times,
    candidate: Contender,
    baseline: Contender,
    required: Work,
    conditions: Conditions,
) -> Measurement:
    """A speed needs right answers of candidate and baseline, and a time that is possible."""
    with _named(candidate.implementation.name):
        checked = verified(candidate)
    measurement = replace(measurement, worst=checked.worst, checks=checked.elements, checked=str(checked))
    if reason := _wrong(checked):
        return replace(measurement, verdict=Speed.WRONG, reason=reason)
    again = partial(limits, conditions.device, tuple(conditions.rates.matmul))
    if impossible := faster_than_possible(measurement.seconds, required, measurement.dtype, conditions.rates, again):
        return replace(measurement, verdict=Speed.IMPOSSIBLE, reason=impossible)
    speed = times.speed()
    if measurement.implementation == measurement.baseline:
        return replace(measurement, verdict=Speed.BASELINE, speed=speed)
    with _named(baseline.implementation.name):
        other = verified(baseline, seconds=0.0, gradients=False)
    if reason := _wrong(other):
        reason = f"the baseline {baseline.implementation.name} is wrong: {reason}"
        return replace(measurement, verdict=Speed.ERROR, reason=reason)
    return replace(measurement, verdict=verdict(speed, times.noise()), speed=speed)


def _wrong(checked: AnswerCheck) -> str:
    if checked.message:
        return checked.message
    return "" if checked.elements else f"no answer could be checked: {checked}"


def _block(contender: Contender) -> float:
    with _named(contender.implementation.name):
        return contender.block()


def _warmed(contenders: list[Contender], times: int) -> int:
    """Warms up all contenders alike; returns the number of calls in a block, which is that of the fastest one."""
    took = [_warm(each, times) for each in contenders]
    size = sum(array.nbytes for each in contenders for array in each.problem.arrays().values())
    most = max(1, min(LONGEST_BLOCK, BLOCK_BYTES // max(1, size)))
    calls = min(most, max(1, int(np.ceil(SHORTEST / max(1e-9, min(took))))))
    if calls > 1:
        for each in contenders:
            each.widen(calls)
            _warm(each, times)
    return calls


def _warm(contender: Contender, times: int) -> float:
    return min(_block(contender) for _ in range(times))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Any exception inside becomes a message with the name: a candidate always gets a verdict."""
    try:
        yield
    except (KeyboardInterrupt, ContenderError):
        raise
    except MemoryError as error:
        raise ContenderError(f"{name} ran out of memory: {error}") from error
    except BaseException as error:
        message = str(error).strip().splitlines() or ["no message"]
        raise ContenderError(f"{name} raised {type(error).__name__}: {message[0]}") from error


@contextmanager
def _global_state() -> Iterator[None]:
    """Restores the global state, in which no contender may change the number of threads for the others."""
    threads = torch.get_num_threads()
    try:
        with kept_global_state():
            yield
        if torch.get_num_threads() != threads:
            raise ContenderError(f"a call changed the number of threads from {threads} to {torch.get_num_threads()}")
    finally:
        torch.set_num_threads(threads)
