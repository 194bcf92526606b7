"""Ending: the last lines of a run that has found something, or has not come to its end: what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.spec.clauses import load
from attention_conformance.tests.harness.judge.clause_tests import claimed
from attention_conformance.tests.harness.run.command_lines import asking, explaining
from attention_conformance.tests.harness.run.selection import Options
from attention_conformance.tests.report.recorder import Recorder, environment, suite_version
from attention_conformance.tests.report.verdict import Status


@dataclass(eq=False)
class Ending:
    """Writes those lines below everything else."""

    options: Options
    recorder: Recorder
    implementations: Sequence[Implementation]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        try:
            return (yield)
        finally:
            terminal = session.config.pluginmanager.get_plugin("terminalreporter")
            if terminal is not None and (self.recorder.events or session.exitstatus == pytest.ExitCode.INTERNAL_ERROR):
                status = pytest.ExitCode.INTERNAL_ERROR if _crashed(terminal) else session.exitstatus
                lines = next_steps(int(status), self.options, self.recorder, self.implementations)
                for number, line in enumerate(lines):
                    terminal.write_line(f"{'     ' if number else 'next:'} {line}")


def _crashed(terminal: pytest.TerminalReporter) -> bool:
    """Whether a question ended without a verdict: an exception of the suite's own code, not of a candidate's."""
    failed = [report for report in terminal.stats.get("failed", []) if "tests/conformance/" in report.nodeid]
    return any(report.when == "call" and not report.user_properties for report in failed)


def next_steps(
    status: int, options: Options, recorder: Recorder, implementations: Sequence[Implementation]
) -> list[str]:
    """What to do after an exit with this status; nothing after a success."""
    match status:
        case pytest.ExitCode.TESTS_FAILED:
            return list(_after_failures(options, recorder))
        case pytest.ExitCode.INTERRUPTED:
            where = f", and {options.report / 'report.json'} says so" if options.report is not None else ""
            return [f"the run did not come to its end{where}: it is no verdict; run it again"]
        case pytest.ExitCode.INTERNAL_ERROR:
            versions = ", ".join(f"{name} {version}" for name, version in environment().items())
            return [
                f"this is an error of the suite: report it, with these lines; version {suite_version()}, {versions}"
            ]
        case pytest.ExitCode.NO_TESTS_COLLECTED:
            asked = next(iter(options.clauses), "CLAUSE")
            return [
                f"nothing was asked, {_unasked(options, implementations)}: {explaining(asked)} says who is asked it"
            ]
    return []


def _unasked(options: Options, implementations: Sequence[Implementation]) -> str:
    """Why the first of the chosen clauses that does not fit an implementation is not asked of it."""
    chosen = [c for c in load().values() if any(fnmatchcase(c.id, pattern) for pattern in options.clauses)]
    for clause, implementation in product(chosen, implementations):
        if why := claimed(clause, implementation.claims):
            elsewhere = clause.scope not in (None, implementation.claims.scope)
            return f"because {clause.id if elsewhere else implementation.name} {why}"
    return "for want of a claim"


def _after_failures(options: Options, recorder: Recorder) -> Iterator[str]:
    order = list(load())
    failing = sorted(
        (v for v in recorder.verdicts if v.status is Status.FAIL and v.level == "MUST"),
        key=lambda v: order.index(v.clause),
    )
    if not failing:
        yield "an ERROR is no failure of the candidate: follow what it says; if it says nothing to do, report it"
    for first in failing[:1]:
        yield f"{explaining(first.clause)}  says what the first failing clause asks, and why"
        yield f"{again_of(options, recorder.targets, first.implementation, first.clause, first.dtype)}  asks it alone"
    if options.report is not None:
        yield f"{_page(options.report)}  shows every failure"


def _page(report: Path) -> Path:
    page = report / "report.html"
    return page if page.exists() else report / "report.json"


def again_of(options: Options, targets: Mapping[str, str], implementation: str, clause: str, dtype: str) -> str:
    """What to type to ask one clause again: of one candidate, where there are several."""
    conventions = [word for setting in options.conventions for word in ("--convention", setting)]
    expected = [] if options.expected is None else ["--expected-failures", str(options.expected)]
    tier = [] if options.tier == "quick" else ["--tier", options.tier]
    device = [] if options.device == "cpu" else ["--device", options.device]
    chosen = [*conventions, *expected, "--clause", clause, "--dtype", dtype, *tier, *device]
    mine = [targets[implementation]] if len(options.candidates) > 1 else options.candidates
    return asking(mine, implementation, chosen)
