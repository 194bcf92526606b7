"""A benchmark run while it is measured; it is stored after each step."""

import time
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.spec.features import Scope
from attention_conformance.tests.benchmarks.benchmark_run import Measurement, Run, store
from attention_conformance.tests.benchmarks.floor import fastest, machine, rates
from attention_conformance.tests.benchmarks.growth import growths
from attention_conformance.tests.benchmarks.import_times import import_seconds, library
from attention_conformance.tests.benchmarks.measure import Conditions, measure
from attention_conformance.tests.benchmarks.plan import Plan
from attention_conformance.tests.benchmarks.speed_clauses import clause_results, head_count
from attention_conformance.tests.benchmarks.workloads import FORWARD, Timed


@dataclass
class SpeedSession:
    """An unfinished run.

    Attributes:
        file: where it is stored; None: nowhere.
        planned: number of steps of a complete run.
        steps: number of finished steps.
    """

    plan: Plan
    file: Path | None = None
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

    def pair(self, timed: Timed, implementation: Implementation) -> Measurement:
        """Measures an implementation on a workload."""
        conditions = Conditions(self.plan.device, self.run.rates, self.plan.effort)
        measurement = measure(timed, implementation, self.plan.baseline_of(timed), conditions)
        self._step(replace(self.run, measurements=(*self.run.measurements, measurement)))
        return measurement

    def growth(self, implementation: Implementation) -> str:
        """Measures the growth with the length and the number of heads; the reason, if that is not supported."""
        device, dtype = self.plan.device, "float32"
        grown = growths(implementation, FORWARD, dtype, device)
        if isinstance(grown, Unsupported):
            self._step(self.run)
            return grown.reason
        results = (*self.run.clause_results, *head_count(implementation, dtype, device))
        self._step(replace(self.run, growths=(*self.run.growths, *grown), clause_results=results))
        return ""

    def finish(self) -> Run:
        """Closes the run; it is complete only if every planned step is finished."""
        run, plan, complete = self.run, self.plan, self.steps == self.planned
        imports = {i.name: _imports(library(i)) for i in plan.implementations} if plan.whole and complete else {}
        best = fastest(run.rates, rates(plan.device, tuple(run.rates.matmul)))
        results = (*run.clause_results, *clause_results(run, plan.implementations))
        self.run = replace(run, rates=best, imports=imports, clause_results=results, complete=complete)
        return self.run

    def growing(self) -> tuple[Implementation, ...]:
        """The implementations whose growth is measured."""
        return tuple(i for i in self.plan.implementations if i.claims.scope is Scope.OP) if self.plan.whole else ()

    def _step(self, run: Run) -> None:
        self.run, self.steps = run, self.steps + 1
        self._store()

    def _store(self) -> None:
        if self.file is not None:
            store(self.run, self.file)


_imports = cache(import_seconds)
