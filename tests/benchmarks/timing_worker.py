"""The process that times a candidate: it answers the requests of `tests.benchmarks.apart` until its input ends.

It has the candidate, its baseline and the clock, so that times can be compared in pairs, and checks the answers itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any

import pytest
from pydantic import TypeAdapter

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.worker.resources import limit_memory
from attention_conformance.implementations.worker.serve import die_with_parent, import_from_here, own_streams, served
from attention_conformance.implementations.worker.wire import Message
from attention_conformance.tests.benchmarks.benchmark_run import Rates
from attention_conformance.tests.benchmarks.import_times import library
from attention_conformance.tests.benchmarks.measure import Conditions, ContenderError, measure
from attention_conformance.tests.benchmarks.plan import BenchmarkOptions, Plan, plan_of
from attention_conformance.tests.benchmarks.speed_clauses import growth_figures
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.plan.selection import UsageError, selection_of


class TimingWorker:
    """The plan of one candidate, and an answer to each kind of request about it."""

    def __init__(self) -> None:
        self.given: Mapping[str, Any] = {}

    def answer(self, request: Message) -> Message:
        """The answer to a request; a candidate that gives no figures says why."""
        try:
            return Message(OPERATIONS[request.fields["request"]](self, request.fields))
        except UsageError as error:
            return Message({"unusable": str(error)})
        except (KeyboardInterrupt, pytest.exit.Exception) as error:
            return Message({"error": f"raised {type(error).__name__}", "exception": type(error).__name__})
        except ContenderError as error:
            return Message({"error": str(error), "exception": ""})

    def hello(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Loads the candidate."""
        self.given, memory = given, limit_memory(given["memory"])
        return {"memory": memory, "library": library(self._candidate)}

    def pair(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The measurement on a workload."""
        (timed,) = (each for each in self._plan.timed if each.name == given["timed"])
        rates = TypeAdapter(Rates).validate_python(given["rates"])
        conditions = Conditions(self._plan.device, rates, self._plan.effort)
        return {"measurement": asdict(measure(timed, self._candidate, self._plan.baseline_of(timed), conditions))}

    def growth(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The growth with the length and the number of heads; see `SpeedSession.growth`."""
        reason, grown, results = growth_figures(self._candidate, given["dtype"], self._plan.device)
        return {"reason": reason, "growths": list(map(asdict, grown)), "results": list(map(asdict, results))}

    @cached_property
    def _plan(self) -> Plan:
        settings = TypeAdapter(RunSettings).validate_python(self.given["settings"])
        options = TypeAdapter(BenchmarkOptions).validate_python(self.given["options"])
        return plan_of(settings, selection_of(settings), options)

    @property
    def _candidate(self) -> Implementation:
        return self._plan.implementations[0]


OPERATIONS = {"hello": TimingWorker.hello, "pair": TimingWorker.pair, "growth": TimingWorker.growth}
"""The requests by name."""


if __name__ == "__main__":
    streams = own_streams()
    import_from_here()
    die_with_parent()
    served(streams, TimingWorker().answer)
