"""How often the benchmarks report a baseline as different from itself, and how often they detect a tenth more time.

`make bench-calibration` makes whole measurements on this machine, without simulation, and writes
docs/benchmark-calibration.md.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import torch

from attention_conformance.implementations.adapters.native import Native, natively
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.catalogue import BUILTIN
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.benchmarks.benchmark_run import WITH_RATIO, Measurement, Rates, Speed
from attention_conformance.tests.benchmarks.floor import machine, rates
from attention_conformance.tests.benchmarks.measure import Conditions, measure
from attention_conformance.tests.benchmarks.paired_timing import Effort
from attention_conformance.tests.benchmarks.workloads import REPRESENTATIVE, Timed
from attention_conformance.tests.measurements.pages import write_page

RUNS, SHARE = 50, 0.1
WORKLOADS = ("tiny.op.forward.float32", "vit-b16.op.forward.float32", "bert-128.module.forward.float32")
"""Short and long calls, an op and a module, in turn."""
TIMED = [each for each in REPRESENTATIVE if each.name in WORKLOADS]
COPIED = 2**14
"""Bytes of one copy: small, so that copies can stop at any time."""


@dataclass(frozen=True)
class Longer:
    """The `run` of another, which copies memory after each call until a share of the call's time has gone."""

    run: Any
    share: float

    def __call__(self, problem: Problem, device: str) -> Any:
        """As the other, without copies: this is not timed."""
        return self.run(problem, device)

    def native(self, problem: Problem, device: str) -> Native:
        """The other's call, and the copies."""
        inner = natively(self.run, problem, device)
        source, target = torch.ones(2, COPIED // 4)

        def bare() -> object:
            start = time.perf_counter()
            answer = inner.bare()
            end = start + (1.0 + self.share) * (time.perf_counter() - start)
            while time.perf_counter() < end:
                target.copy_(source)
            return answer

        return replace(inner, bare=bare)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures for some minutes, and writes the page."""
    parser = argparse.ArgumentParser(f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="of each kind (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all runs together (default: %(default)g)")
    options = parser.parse_args(arguments)
    known, end = rates("cpu", {each.dtype for each in TIMED}), time.perf_counter() + options.seconds
    same, longer = list[Measurement](), list[Measurement]()
    while len(longer) < options.runs and time.perf_counter() < end:
        timed = TIMED[len(longer) % len(WORKLOADS)]
        baseline = next(i for i in BUILTIN if i.name == timed.workload.baseline)
        same.append(_measured(timed, baseline, 0.0, known, len(same)))
        longer.append(_measured(timed, baseline, SHARE, known, len(longer)))
        print(f"{len(same)}: itself {same[-1].verdict}, a tenth more {longer[-1].verdict}", flush=True)
    write_page(
        "benchmark-calibration.md",
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machine=machine("cpu"),
        rates=list(rates_of(same, longer)),
        without_verdict=[each for each in (*same, *longer) if each.verdict not in WITH_RATIO],
        workloads=[_row(timed, same, longer) for timed in TIMED],
    )


def _measured(timed: Timed, baseline: Implementation, share: float, known: Rates, seed: int) -> Measurement:
    # With the same name the verdict would be `baseline`.
    other = replace(baseline, name=f"{baseline.name} again", run=Longer(baseline.run, share) if share else baseline.run)
    return measure(timed, other, baseline, Conditions("cpu", known, Effort(), seed))


def rates_of(same: Sequence[Measurement], longer: Sequence[Measurement]) -> Iterator[Sequence[str]]:
    """How often the baseline itself was reported different, and the longer one slower."""
    different = sum(each.verdict in (Speed.FASTER, Speed.SLOWER) for each in same)
    slower = sum(each.verdict is Speed.SLOWER for each in longer)
    longer_one = "the baseline, and copies for a tenth of its time"
    yield "the baseline itself", str(len(same)), f"{different} ({_percent(different, same)})", "at most 5 %"
    yield longer_one, str(len(longer)), f"{slower} slower ({_percent(slower, longer)})", "at least 90 %"


def _percent(count: int, of: Sequence[Measurement]) -> str:
    return f"{100.0 * count / max(1, len(of)):.0f} %"


def _row(timed: Timed, same: Sequence[Measurement], longer: Sequence[Measurement]) -> Sequence[str]:
    of_itself = [each for each in same if _is_of(each, timed) and each.noise is not None]
    slowed = [each.speed.value for each in longer if _is_of(each, timed) and each.speed is not None]
    if not of_itself or not slowed:
        return timed.name, "-", "-", "-", "-"
    noises = [each.noise or 0.0 for each in of_itself]
    rounds = median(len(each.seconds) for each in of_itself)
    return timed.name, f"{median(noises):.1%}", f"{max(noises):.1%}", f"{rounds:g}", f"{median(slowed):.3f}"


def _is_of(each: Measurement, timed: Timed) -> bool:
    return (each.workload, each.level) == (timed.workload.name, timed.workload.level)


if __name__ == "__main__":
    main()
