"""Calibration: how often the benchmarks call a baseline different from itself, and how often they find a tenth more.

`make bench-calibration` times whole measurements of this machine, nothing is simulated, and writes
docs/benchmark-calibration.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from attention_conformance.implementations.adapters.native import Native, natively
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin import BUILTIN
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.benchmarks.benchmark_run import Measurement, Rates, Speed
from attention_conformance.tests.benchmarks.floor import machine, rates
from attention_conformance.tests.benchmarks.measure import Conditions, measure
from attention_conformance.tests.benchmarks.paired_timing import Effort
from attention_conformance.tests.benchmarks.workloads import REPRESENTATIVE, Timed

PAGE = Path(__file__).parents[2] / "docs" / "benchmark-calibration.md"
RUNS, SHARE = 50, 0.1
WORKLOADS = ("tiny.op.forward.float32", "vit-b16.op.forward.float32", "bert-128.module.forward.float32")
"""Short and long calls, an op and a module, in turn."""
COPIED = 2**14
"""Bytes of one copy: small enough to stop in time."""


@dataclass(frozen=True)
class Longer:
    """The `run` of another, which copies memory after each call until a share of the call's time has gone."""

    run: Any
    share: float

    def __call__(self, problem: Problem, device: str) -> Any:
        """As the other, and no slower: this is not timed."""
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
    parser = argparse.ArgumentParser(
        prog="python -m attention_conformance.tests.measurements.calibration", description=__doc__
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="of each kind (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all runs together (default: %(default)g)")
    asked = parser.parse_args(arguments)
    dtypes = {each.dtype for each in _timed()}
    known, end = rates("cpu", dtypes), time.perf_counter() + asked.seconds
    same, longer = list[Measurement](), list[Measurement]()
    while len(longer) < asked.runs and time.perf_counter() < end:
        timed = _timed()[len(longer) % len(WORKLOADS)]
        baseline = next(i for i in BUILTIN if i.name == timed.workload.baseline)
        same.append(_made(timed, baseline, 0.0, known, len(same)))
        longer.append(_made(timed, baseline, SHARE, known, len(longer)))
        print(f"{len(same)}: itself {same[-1].verdict}, a tenth more {longer[-1].verdict}", flush=True)
    PAGE.write_text(page(same, longer))
    print(f"\n{PAGE.read_text()}")


def _timed() -> list[Timed]:
    return [each for each in REPRESENTATIVE if each.name in WORKLOADS]


def _made(timed: Timed, baseline: Implementation, share: float, known: Rates, seed: int) -> Measurement:
    # Another name, or the verdict would be that it is the baseline.
    other = replace(baseline, name=f"{baseline.name} again", run=Longer(baseline.run, share) if share else baseline.run)
    return measure(timed, other, baseline, Conditions("cpu", known, Effort(), seed))


def page(same: Sequence[Measurement], longer: Sequence[Measurement]) -> str:
    """The page: both figures, and on what they were measured."""
    told = machine("cpu")
    different = sum(each.verdict in (Speed.FASTER, Speed.SLOWER) for each in same)
    found = sum(each.verdict is Speed.SLOWER for each in longer)
    broken = [each for each in (*same, *longer) if each.verdict not in (Speed.FASTER, Speed.SLOWER, Speed.SAME)]
    lines = [
        "# What a benchmark takes for a difference",
        "",
        f"Written by `make bench-calibration` on {time.strftime('%Y-%m-%d', time.gmtime())}; {told.processor}, "
        f"{told.cores} cores, {told.threads} threads, torch {told.versions['torch']}.",
        "",
        "| candidate | runs | called different | wanted |",
        "| --- | --- | --- | --- |",
        f"| the baseline itself | {len(same)} | {different} ({_share(different, same)}) | at most 5 % |",
        f"| the baseline, and copies for a tenth of its time | {len(longer)} | {found} slower"
        f" ({_share(found, longer)}) | at least 90 % |",
        "",
        f"Runs without a verdict of speed: {len(broken)}{''.join(f'; {each.reason}' for each in broken[:1])}.",
        "",
        "| workload | noise floor, median | largest | rounds, median | x baseline with a tenth more, median |",
        "| --- | --- | --- | --- | --- |",
        *(_row(timed, same, longer) for timed in _timed()),
        "",
        "1 / 1.1 = 0.909 is the true ratio of the last column.",
    ]
    return "\n".join(lines) + "\n"


def _share(count: int, of: Sequence[Measurement]) -> str:
    return f"{100.0 * count / max(1, len(of)):.0f} %"


def _row(timed: Timed, same: Sequence[Measurement], longer: Sequence[Measurement]) -> str:
    mine = [each for each in same if _is_of(each, timed) and each.noise is not None]
    slowed = [each.speed.value for each in longer if _is_of(each, timed) and each.speed is not None]
    if not mine or not slowed:
        return f"| {timed.name} | - | - | - | - |"
    noises = [each.noise or 0.0 for each in mine]
    rounds = median(len(each.seconds) for each in mine)
    return f"| {timed.name} | {median(noises):.1%} | {max(noises):.1%} | {rounds:g} | {median(slowed):.3f} |"


def _is_of(each: Measurement, timed: Timed) -> bool:
    return (each.workload, each.level) == (timed.workload.name, timed.workload.level)


if __name__ == "__main__":
    main()
