"""Candidates timed in processes of their own: one that dies or never answers loses its own figures only."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.implementations.discovery.candidates import distinct
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.worker.door import Door
from attention_conformance.implementations.worker.elsewhere import module_command
from attention_conformance.implementations.worker.limits import SLOWEST
from attention_conformance.implementations.worker.wire import Message
from attention_conformance.tests.benchmarks.benchmark_run import ClauseResult, Growth, Measurement, Rates
from attention_conformance.tests.benchmarks.growth import HEADS, LENGTHS, LONGEST, ROUNDS
from attention_conformance.tests.benchmarks.measure import ContenderError
from attention_conformance.tests.benchmarks.paired_timing import OVERTIME
from attention_conformance.tests.benchmarks.plan import BenchmarkOptions, Plan
from attention_conformance.tests.benchmarks.workloads import Timed
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.plan.selection import UsageError

COMMAND = module_command("attention_conformance.tests.benchmarks.timing_worker")
GROWING = (len(LENGTHS) + 2 * len(HEADS)) * (ROUNDS + 1) * LONGEST
"""Seconds of all calls of a growth at the longest: with the length, and with the heads of candidate and baseline."""
PHASES = 3.0
"""A pair is timed, its memory is measured, and its answers are checked, each within the time of the rounds."""


@dataclass
class TimingProcess:
    """The process that times a candidate, and is started again where it was lost.

    Attributes:
        library: the module that the candidate needs; see `import_times.library`.
    """

    door: Door
    library: str = "torch"

    def start(self) -> None:
        """Starts it; where it is lost, each of its figures will say so."""
        with suppress(CandidateError, TargetError):
            self.library = str(self.door.start().fields["library"])

    def pair(self, timed: Timed, rates: Rates) -> Measurement:
        """The measurement on a workload.

        Raises:
            ContenderError: the process was lost, or gives none.
        """
        request = Message({"request": "pair", "timed": timed.name, "rates": asdict(rates)})
        measurement: Measurement = TypeAdapter(Measurement).validate_python(self._answer(request)["measurement"])
        return measurement

    def growth(self, dtype: str) -> tuple[str, tuple[Growth, ...], tuple[ClauseResult, ...]]:
        """Why growth cannot be measured, or the growths and the results of clauses.

        Raises:
            ContenderError: the process was lost.
        """
        fields = self._answer(Message({"request": "growth", "dtype": dtype}), GROWING)
        grown: list[Growth] = TypeAdapter(list[Growth]).validate_python(fields.get("growths", []))
        results: list[ClauseResult] = TypeAdapter(list[ClauseResult]).validate_python(fields.get("results", []))
        return fields["reason"], tuple(grown), tuple(results)

    def _answer(self, request: Message, seconds: float = 0.0) -> Mapping[str, Any]:
        """The fields of an answer, for which it has so many seconds beyond its deadline."""
        try:
            return self.door.request(request, seconds * SLOWEST).fields
        except CandidateError as error:
            raise ContenderError(str(error)) from error


def timing_processes(settings: RunSettings, options: BenchmarkOptions, plan: Plan) -> dict[str, TimingProcess]:
    """The process that times each candidate, by its name; none of them is started yet.

    Raises:
        UsageError: a candidate that is not imported by this interpreter.
    """
    if settings.commands or settings.python:
        option = "--command" if settings.commands else "--python"
        raise UsageError(f"{option}: benchmarks time what this interpreter imports; give --candidate TARGET alone")
    if not settings.isolated or not settings.candidates:
        return {}
    targets = dict(zip((i.name for i in plan.implementations), distinct(settings.candidates).values(), strict=True))
    return {
        each.name: TimingProcess(_door(settings, options, _needed(each, plan.baseline, targets)))
        for each in plan.implementations
    }


def _needed(candidate: Implementation, baseline: Implementation | None, targets: Mapping[str, str]) -> tuple[str, ...]:
    """The targets of a candidate and of its baseline, if that is a candidate too."""
    return tuple(dict.fromkeys(targets[i.name] for i in (candidate, baseline) if i is not None and i.name in targets))


def _door(settings: RunSettings, options: BenchmarkOptions, targets: tuple[str, ...]) -> Door:
    own = replace(settings, candidates=targets, isolated=False, report=None)
    hello = {
        "settings": TypeAdapter(RunSettings).dump_python(own, mode="json"),
        "options": asdict(options),
        "memory": settings.memory,
    }
    return Door(hello, COMMAND, settings.deadline + PHASES * OVERTIME * options.seconds)
