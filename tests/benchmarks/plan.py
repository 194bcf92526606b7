"""The plan of a benchmark run, by the options of the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.catalogue import BUILTIN, NAMED, ON_REQUEST
from attention_conformance.tests.benchmarks.paired_timing import Effort
from attention_conformance.tests.benchmarks.workloads import IMPLEMENTATIONS, REPRESENTATIVE, Timed, timed
from attention_conformance.tests.harness.judge.clause_tests import Selection
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.plan.selection import UsageError, require_known

KNOWN = {each.name: each for each in (*BUILTIN, *NAMED, *ON_REQUEST)}


@dataclass(frozen=True)
class BenchmarkOptions:
    """The options that only benchmarks have.

    Attributes:
        workloads: patterns of names: "gpt2*", or in full "gpt2-causal-1024.op.forward.*"; empty: representative ones.
        baseline: the name of the implementation to compare with; empty: the baseline of each workload.
        seconds: for each pair.
        whole: True to measure growth with the length and import times, too.
    """

    workloads: tuple[str, ...] = ()
    baseline: str = ""
    seconds: float = Effort().seconds
    whole: bool = False


@dataclass(frozen=True)
class Plan:
    """Each implementation on each workload of its level."""

    implementations: tuple[Implementation, ...]
    timed: tuple[Timed, ...]
    device: str
    effort: Effort
    baseline: Implementation | None
    whole: bool

    def pairs(self) -> list[tuple[Timed, Implementation]]:
        """In the order of the table: by workload, its baseline first."""
        return [
            (each, implementation)
            for each in self.timed
            for implementation in sorted(self.implementations, key=lambda i: i is not self.baseline_of(each))
            if implementation.claims.scope is each.workload.case.scope
        ]

    def baseline_of(self, each: Timed) -> Implementation:
        """The implementation that others are compared with on a workload."""
        return self.baseline or KNOWN[each.workload.baseline]


def plan_of(settings: RunSettings, selection: Selection, benchmark_options: BenchmarkOptions) -> Plan:
    """The plan of these settings.

    Raises:
        UsageError: a name that selects nothing, or a number out of range.
    """
    if benchmark_options.seconds <= 0.0:
        raise UsageError(f"--seconds {benchmark_options.seconds:g} is not positive: give a number such as 3")
    named = settings.candidates or settings.implementations
    implementations = selection.implementations if named else tuple(KNOWN[name] for name in IMPLEMENTATIONS)
    timed_calls = _timed(benchmark_options.workloads, selection.dtypes)
    baseline = _baseline(benchmark_options.baseline, implementations)
    effort = Effort(seconds=benchmark_options.seconds)
    plan = Plan(implementations, timed_calls, settings.device, effort, baseline, benchmark_options.whole)
    if not plan.pairs():
        levels = " and ".join(sorted({each.workload.level for each in plan.timed}))
        names = ", ".join(i.name for i in implementations)
        raise UsageError(f"--workload selects {levels} workloads only, and {names} takes none of them")
    return plan


def _timed(patterns: Sequence[str], dtypes: Sequence[str]) -> tuple[Timed, ...]:
    """Workloads that a pattern names, or representative ones; in these dtypes, or in their own if there are none."""
    chosen = timed() if patterns else REPRESENTATIVE
    if dtypes:
        chosen = tuple(dict.fromkeys(Timed(each.workload, each.passes, d) for each in chosen for d in dtypes))
    names = dict.fromkeys(name for each in chosen for name in (each.workload.name, each.name))
    require_known("--workload", patterns, list(names))
    return tuple(each for each in chosen if not patterns or _named(each, patterns))


def _named(each: Timed, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in (each.workload.name, each.name) for pattern in patterns)


def _baseline(name: str, implementations: Sequence[Implementation]) -> Implementation | None:
    if not name:
        return None
    known = {**KNOWN, **{each.name: each for each in implementations}}
    if name not in known:
        near = get_close_matches(name, known, 3, 0.4) or list(known)[:3]
        raise UsageError(f"--baseline {name!r} is no implementation; there are for example: {', '.join(near)}")
    return known[name]
