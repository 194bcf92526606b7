"""Comparison of two runs, `make bench-compare OLD=... NEW=...`: names what became slower or wrong.

What is compared is the ratio to the baseline, which both runs have measured in rounds of its own: a machine that is
slower today is slower for both. Seconds of two runs are not compared.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attention_conformance.tests.benchmarks.record import Interval, Measurement, Run, Speed
from attention_conformance.tests.benchmarks.stored import run_of

WITH_SPEED = (Speed.FASTER, Speed.SLOWER, Speed.SAME)
REGRESSED, UNUSABLE = 1, 4
"""Exit statuses: something became slower or wrong; the runs cannot be compared."""


class IncomparableError(ValueError):
    """The runs cannot be compared; the message is one line with the remedy."""


@dataclass(frozen=True)
class Change:
    """What became of a measurement.

    Attributes:
        name: workload, level, passes, dtype and implementation.
        ratio: the new speed / the old one: 2 is twice as fast, beside the baseline; None without two speeds.
        worse: whether it is slower than before by more than both intervals and both noise floors, or has no speed now.
        better: the other way round.
        said: in words.
    """

    name: str
    ratio: Interval | None
    worse: bool
    better: bool
    context: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the changes; the exit status tells whether there are regressions."""
    parser = argparse.ArgumentParser(
        prog="python -m attention_conformance.tests.benchmarks.compare", description=__doc__
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--across-machines", action="store_true", help="compare runs of different machines")
    asked = parser.parse_args(arguments)
    try:
        changes = compared(run_of(asked.old), run_of(asked.new), asked.across_machines)
    except (OSError, ValueError) as error:
        print(f"ERROR: {error}", file=sys.stderr)
        return UNUSABLE
    for line in told(changes):
        print(line)
    return REGRESSED if any(change.worse for change in changes) else 0


def compared(old: Run, new: Run, across_machines: bool = False) -> list[Change]:
    """What became of each measurement that both runs have, or that the new one has lost.

    Raises:
        IncomparableError: a run is not complete, they are of different machines, or have nothing in common.
    """
    for name, run in (("old", old), ("new", new)):
        if not run.complete:
            raise IncomparableError(f"the {name} run was cut short: run it again")
    if not across_machines and (differences := _differences(old, new)):
        told_apart = "; ".join(differences)
        raise IncomparableError(f"the runs are of different machines ({told_apart}): --across-machines compares them")
    before = {_key(each): each for each in old.measurements}
    after = {_key(each): each for each in new.measurements}
    if not before.keys() & after.keys():
        raise IncomparableError("the runs have no measurement in common: run the same workloads and implementations")
    return [_change(before[key], after[key]) for key in before if key in after]


def told(changes: Sequence[Change]) -> Iterator[str]:
    """Regressions first, then what became faster, then the number of the others."""
    for title, chosen in (
        ("slower or broken", [c for c in changes if c.worse]),
        ("faster", [c for c in changes if c.better]),
    ):
        yield f"{title}: {len(chosen) or 'nothing'}"
        yield from (f"  {change.name}: {change.context}" for change in chosen)
    yield f"no difference: {sum(not (c.worse or c.better) for c in changes)} of {len(changes)}"


def _differences(old: Run, new: Run) -> list[str]:
    """What tells the machines apart; versions of libraries do not, for they are what one may want to compare."""
    names = ("device", "processor", "cores", "memory", "threads")
    pairs = [(name, getattr(old.machine, name), getattr(new.machine, name)) for name in names]
    return [f"{name}: {one}, then {other}" for name, one, other in pairs if one != other]


def _key(each: Measurement) -> tuple[str, ...]:
    return each.workload, each.level, each.passes, each.dtype, each.device, each.implementation, each.baseline


def _change(old: Measurement, new: Measurement) -> Change:
    name = f"{new.workload} {new.level} {new.passes} {new.dtype} {new.implementation}"
    if old.verdict in WITH_SPEED and new.verdict in WITH_SPEED and old.speed and new.speed:
        return _of_speeds(name, old, new, old.speed, new.speed)
    lost = old.verdict in (*WITH_SPEED, Speed.BASELINE) and new.verdict not in (*WITH_SPEED, Speed.BASELINE)
    context = f"{old.verdict}, then {new.verdict}" + (f" ({new.reason})" if new.reason else "")
    return Change(name, None, lost, False, context)


def _of_speeds(name: str, old: Measurement, new: Measurement, before: Interval, after: Interval) -> Change:
    """The interval of a ratio of two independent ones: as wide as both allow, so that it errs on the safe side."""
    ratio = Interval(after.value / before.value, after.low / before.high, after.high / before.low)
    noise = max(old.noise or 0.0, new.noise or 0.0)
    context = f"{ratio.value:.3g} x as fast as before ({ratio.low:.3g} to {ratio.high:.3g}, noise {noise:.1%})"
    worse = ratio.high < 1.0 and ratio.value < 1.0 / (1.0 + noise)
    return Change(name, ratio, worse, ratio.low > 1.0 and ratio.value > 1.0 + noise, context)


if __name__ == "__main__":
    sys.exit(main())
