"""Sessions: a benchmark run in the making, which is written down after each step."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import torch

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.spec.features import Scope
from attention_conformance.tests.benchmarks.asking import findings, head_count
from attention_conformance.tests.benchmarks.choosing import Plan
from attention_conformance.tests.benchmarks.floor import fastest, machine, rates
from attention_conformance.tests.benchmarks.growth import growths
from attention_conformance.tests.benchmarks.measuring import Conditions, measure
from attention_conformance.tests.benchmarks.record import Measurement, Run
from attention_conformance.tests.benchmarks.starting import import_seconds, library
from attention_conformance.tests.benchmarks.stored import store
from attention_conformance.tests.benchmarks.workloads import FORWARD, Timed


@dataclass
class Session:
    """A run in the making.

    Attributes:
        file: where it is kept; None: nowhere.
        planned: steps that a complete run has.
    """

    plan: Plan
    file: Path | None = None
    planned: int = 0
    run: Run = field(init=False)
    steps: int = 0

    def begin(self, planned: int) -> None:
        """Measures what the machine can do, and writes down a run that is not complete."""
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
        found = measure(timed, implementation, self.plan.baseline_of(timed), conditions)
        self._step(replace(self.run, measurements=(*self.run.measurements, found)))
        return found

    def growth(self, implementation: Implementation) -> str:
        """Measures how an op grows with the length and the number of heads; why not, where it cannot be asked."""
        device, dtype = self.plan.device, "float32"
        found = growths(implementation, FORWARD, dtype, device)
        if isinstance(found, Unsupported):
            self._step(self.run)
            return found.reason
        heads = tuple(head_count(implementation, dtype, device))
        self._step(replace(self.run, growths=(*self.run.growths, *found), findings=(*self.run.findings, *heads)))
        return ""

    def finish(self) -> Run:
        """Closes the run; it is complete only if every planned step was made."""
        run, plan, whole = self.run, self.plan, self.steps == self.planned
        imports = {i.name: _imports(library(i)) for i in plan.implementations} if plan.whole and whole else {}
        again = rates(plan.device, tuple(run.rates.matmul))
        told = (*run.findings, *findings(run, plan.implementations))
        self.run = replace(run, rates=fastest(run.rates, again), imports=imports, findings=told, complete=whole)
        return self.run

    def growing(self) -> tuple[Implementation, ...]:
        """Whose growth is measured."""
        return tuple(i for i in self.plan.implementations if i.claims.scope is Scope.OP) if self.plan.whole else ()

    def _step(self, run: Run) -> None:
        self.run, self.steps = run, self.steps + 1
        self._store()

    def _store(self) -> None:
        if self.file is not None:
            store(self.run, self.file)


@cache
def _imports(module: str) -> float:
    return import_seconds(module)
