"""A benchmark run while it is measured; it is stored after each step."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.spec.features import Scope
from attention_conformance.tests.benchmarks.apart import TimingProcess
from attention_conformance.tests.benchmarks.benchmark_run import Measurement, Run, store
from attention_conformance.tests.benchmarks.floor import fastest, machine, rates
from attention_conformance.tests.benchmarks.import_times import import_seconds, library
from attention_conformance.tests.benchmarks.measure import Conditions, ContenderError, measure, no_measurement
from attention_conformance.tests.benchmarks.plan import Plan
from attention_conformance.tests.benchmarks.speed_clauses import clause_results, growth_figures
from attention_conformance.tests.benchmarks.workloads import Timed


@dataclass
class SpeedSession:
    """An unfinished run.

    Attributes:
        file: where it is stored; None: nowhere.
        apart: the processes that time candidates, by name; what has none is timed in this one.
        planned: number of steps of a complete run.
        steps: number of finished steps.
    """

    plan: Plan
    file: Path | None = None
    apart: Mapping[str, TimingProcess] = field(default_factory=dict)
    planned: int = 0
    run: Run = field(init=False)
    steps: int = 0

    def begin(self, planned: int) -> None:
        """Measures the rates of the machine, and stores a run that is not complete."""
        self.planned = planned
        dtypes = tuple(dict.fromkeys(each.dtype for each in self.plan.timed))
        absent = {} if torch.cuda.is_available() else {"cuda": "--device cuda: torch finds no GPU"}
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        device = self.plan.device
        self.run = Run(machine(device), rates(device, dtypes), started, absent=absent)
        self._store()
        for each in self.apart.values():
            each.start()

    def pair(self, timed: Timed, implementation: Implementation) -> Measurement:
        """Measures an implementation on a workload."""
        baseline, rates = self.plan.baseline_of(timed), self.run.rates
        if apart := self.apart.get(implementation.name):
            measurement = self._apart(apart, timed, implementation, baseline)
        else:
            measurement = measure(
                timed, implementation, baseline, Conditions(self.plan.device, rates, self.plan.effort)
            )
        self._step(replace(self.run, measurements=(*self.run.measurements, measurement)))
        return measurement

    def _apart(
        self, apart: TimingProcess, timed: Timed, implementation: Implementation, baseline: Implementation
    ) -> Measurement:
        try:
            return apart.pair(timed, self.run.rates)
        except ContenderError as error:
            nothing = no_measurement(timed, implementation, baseline, self.plan.device)
            return replace(nothing, reason=f"{implementation.name} {error}")

    def growth(self, implementation: Implementation) -> str:
        """Measures the growth with the length and the number of heads; the reason, if that is not supported.

        Raises:
            ContenderError: the process of the candidate was lost.
        """
        device, apart = self.plan.device, self.apart.get(implementation.name)
        if apart is not None:
            reason, grown, results = apart.growth(GROWN)
        else:
            reason, grown, results = growth_figures(implementation, GROWN, device)
        of_clauses = (*self.run.clause_results, *results)
        self._step(replace(self.run, growths=(*self.run.growths, *grown), clause_results=of_clauses))
        return reason

    def finish(self) -> Run:
        """Closes the run; it is complete only if every planned step is finished."""
        run, plan, complete = self.run, self.plan, self.steps == self.planned
        imports = {i.name: _imports(self._library(i)) for i in plan.implementations} if plan.whole and complete else {}
        best = fastest(run.rates, rates(plan.device, tuple(run.rates.matmul)))
        results = (*run.clause_results, *clause_results(run, {i.name: self._library(i) for i in plan.implementations}))
        self.run = replace(run, rates=best, imports=imports, clause_results=results, complete=complete)
        for each in self.apart.values():
            each.door.close()
        return self.run

    def _library(self, implementation: Implementation) -> str:
        apart = self.apart.get(implementation.name)
        return library(implementation) if apart is None else apart.library

    def growing(self) -> tuple[Implementation, ...]:
        """The implementations whose growth is measured."""
        return tuple(i for i in self.plan.implementations if i.claims.scope is Scope.OP) if self.plan.whole else ()

    def _step(self, run: Run) -> None:
        self.run, self.steps = run, self.steps + 1
        self._store()

    def _store(self) -> None:
        if self.file is not None:
            store(self.run, self.file)


GROWN = "float32"
"""The dtype of growths."""
_imports = cache(import_seconds)
