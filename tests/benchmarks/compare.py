"""Comparison of two runs, `make bench-compare OLD=... NEW=...`: names what became slower or wrong.

The ratios to the baseline are compared, which each run has measured in its own rounds: a machine that is slower today
is slower for both. Seconds of two runs are not compared.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attention_conformance.tests.benchmarks.benchmark_run import (
    WITH_RATIO,
    WITH_SPEED,
    Interval,
    Measurement,
    Run,
    run_of,
)
from attention_conformance.tests.benchmarks.speed_clauses import divided

REGRESSED, UNUSABLE = 1, 4
"""Exit statuses: something became slower or wrong; the runs cannot be compared."""


class IncomparableError(ValueError):
    """The runs cannot be compared; the message is one line with the remedy."""


@dataclass(frozen=True)
class Change:
    """The difference between two measurements of one implementation on one workload.

    Attributes:
        name: workload, level, passes, dtype and implementation.
        ratio: the new speed relative to the baseline / the old one: 2 is twice as fast; None without two speeds.
        worse: True if it is slower than before by more than both intervals and both noise floors, or has no speed now.
        better: True if it is faster by as much.
        context: the change in words.
    """

    name: str
    ratio: Interval | None
    worse: bool
    better: bool
    context: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the changes; the exit status is 1 if there are regressions."""
    parser = argparse.ArgumentParser(f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--across-machines", action="store_true", help="compare runs of different machines")
    options = parser.parse_args(arguments)
    try:
        changes = compared(run_of(options.old), run_of(options.new), options.across_machines)
    except (OSError, ValueError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return UNUSABLE
    print("\n".join(report_lines(changes)))
    return REGRESSED if any(change.worse for change in changes) else 0


def compared(old: Run, new: Run, across_machines: bool = False) -> list[Change]:
    """The change of each measurement that both runs have.

    Raises:
        IncomparableError: a run is not complete, they are of different machines, or have nothing in common.
    """
    for name, run in (("old", old), ("new", new)):
        if not run.complete:
            raise IncomparableError(f"the {name} run was cut short: run it again")
    if not across_machines and (differences := _differences(old, new)):
        listed = "; ".join(differences)
        raise IncomparableError(f"the runs are of different machines ({listed}): --across-machines compares them")
    before, after = ({(*m.setting, m.implementation): m for m in run.measurements} for run in (old, new))
    if not before.keys() & after.keys():
        raise IncomparableError("the runs have no measurement in common: run the same workloads and implementations")
    return [_change(before[key], after[key]) for key in before if key in after]


def report_lines(changes: Sequence[Change]) -> Iterator[str]:
    """Regressions first, then what became faster, then the number of the others."""
    worse, better = [c for c in changes if c.worse], [c for c in changes if c.better]
    for title, chosen in (("slower or broken", worse), ("faster", better)):
        yield f"{title}: {len(chosen) or 'nothing'}"
        yield from (f"  {change.name}: {change.context}" for change in chosen)
    yield f"no difference: {len(changes) - len(worse) - len(better)} of {len(changes)}"


def _differences(old: Run, new: Run) -> list[str]:
    """The differences between the machines; versions of libraries may differ: one may want to compare them."""
    names = ("device", "processor", "cores", "memory", "threads")
    pairs = [(name, getattr(old.machine, name), getattr(new.machine, name)) for name in names]
    return [f"{name}: {one}, then {other}" for name, one, other in pairs if one != other]


def _change(old: Measurement, new: Measurement) -> Change:
    name = f"{new.workload} {new.level} {new.passes} {new.dtype} {new.implementation}"
    if old.verdict in WITH_RATIO and new.verdict in WITH_RATIO and old.speed and new.speed:
        return _of_speeds(name, old, new, old.speed, new.speed)
    lost = old.verdict in WITH_SPEED and new.verdict not in WITH_SPEED
    context = f"{old.verdict}, then {new.verdict}" + (f" ({new.reason})" if new.reason else "")
    return Change(name, None, lost, False, context)


def _of_speeds(name: str, old: Measurement, new: Measurement, before: Interval, after: Interval) -> Change:
    ratio = divided(after, before)
    noise = max(old.noise or 0.0, new.noise or 0.0)
    context = f"{ratio.value:.3g} x as fast as before ({ratio.low:.3g} to {ratio.high:.3g}, noise {noise:.1%})"
    worse = ratio.high < 1.0 and ratio.value < 1.0 / (1.0 + noise)
    return Change(name, ratio, worse, ratio.low > 1.0 and ratio.value > 1.0 + noise, context)


if __name__ == "__main__":
    sys.exit(main())
