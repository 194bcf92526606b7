"""The command `matrix`: implementations of other packages, each judged in an environment of its own.

Exit status: 0 all were judged, and nothing got worse; 1 something got worse; 2 one could not be judged, or it was
interrupted; 4 no package has the given name.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from attention_conformance.implementations.worker.elsewhere import module_command
from attention_conformance.tests.cli.matrix_basis import Basis, basis, reasons
from attention_conformance.tests.cli.matrix_executor import SchedulerError, end_with_parent, executor
from attention_conformance.tests.cli.matrix_packages import Package, PackageError, environment, packages, versions
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.report.diff import IncomparableError, compared, run_of
from attention_conformance.tests.report.model import key_of
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.report.views.matrix_feed import FEED, feed
from attention_conformance.tests.report.views.matrix_pages import Entry, write
from attention_conformance.tests.report.views.matrix_state import (
    FILE,
    NOT_JUDGED,
    Standing,
    changes,
    read_state,
    remembering,
    standings,
    write_state,
)

STATE, TABLE = "state.json", "matrix.md"
LIMIT = 1800.0
"""Seconds for one implementation."""


@dataclass(frozen=True)
class Row:
    """One implementation.

    Attributes:
        requirement: of its package, such as "keras==3.15.1".
        folder: the name of that of its report.
        verdict: that of its report, or "not judged".
        holding, judged: clauses.
        failing: the clauses that a MUST fails of.
        reason: why it was not judged, or how it differs from the last time.
        worse: whether less holds than the last time.
        finding: what fails in words, as its package states.
    """

    name: str
    package: str
    requirement: str
    folder: str
    verdict: str
    holding: int = 0
    judged: int = 0
    failing: tuple[str, ...] = ()
    reason: str = ""
    worse: bool = False
    finding: str = ""


def matrix(given: Namespace) -> int:
    """Judges the packages that match, prints and writes the table, and returns the exit status."""
    chosen = [each for each in packages() if not given.pattern or any(fnmatchcase(each.name, p) for p in given.pattern)]
    if not chosen:
        names = ", ".join(each.name for each in packages())
        print(f"matrix: no package is called {', '.join(given.pattern)}; there are: {names}", file=sys.stderr)
        return ExitStatus.UNUSABLE
    try:
        since = read_state(given.since) if given.since else None
    except ValueError as error:
        print(f"matrix: {error}", file=sys.stderr)
        return ExitStatus.UNUSABLE
    given.report = given.report.resolve()
    given.report.mkdir(parents=True, exist_ok=True)
    try:
        with executor(given.jobs, given.scheduler) as pool:
            rows = [row for several in pool.map(partial(_judged, given=given), chosen) for row in several]
    except SchedulerError as error:
        print(f"matrix: {error}", file=sys.stderr)
        return ExitStatus.UNUSABLE
    except KeyboardInterrupt:
        print("matrix: interrupted; what was judged is kept, and the same command goes on from there", file=sys.stderr)
        return ExitStatus.INTERRUPTED
    print("\n".join(table(rows)))
    for line in _publish(rows, given.report, since):
        print(line)
    if any(row.verdict == NOT_JUDGED for row in rows):
        return ExitStatus.INTERRUPTED
    return ExitStatus.FAILS if any(row.worse for row in rows) else ExitStatus.CONFORMS


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The rows in Markdown."""
    yield from ("| implementation | package | verdict | clauses that hold | failing | note |", "| --- " * 6 + "|")
    for row in rows:
        held = f"{row.holding} of {row.judged}" if row.judged else ""
        failing = ", ".join(f"`{clause}`" for clause in row.failing)
        yield f"| {row.name} | {row.package} | {row.verdict} | {held} | {failing} | {row.reason.replace('|', '/')} |"


def _publish(rows: Sequence[Row], report: Path, since: Mapping[str, Standing] | None = None) -> list[str]:
    """Writes table and pages of these rows, and of what was judged before in others; what changed is returned."""
    judged = {row.package for row in rows}
    absent = [(each, name) for each in packages() if each.name not in judged for name in each.implementations]
    others = [_read(each, name, report) for each, name in absent if (report / f"{each.name}.{name}" / STATE).is_file()]
    known = sorted([*rows, *others], key=lambda row: row.folder)
    (report / TABLE).write_text("\n".join(table(known)) + "\n", encoding="utf-8")
    entries = [_entry(row, report) for row in known]
    last = read_state(report / FILE) if since is None and (report / FILE).is_file() else since
    now = remembering(standings(entries), last or {})
    changed = [] if since is None else list(changes(since, now))
    write(entries, now, report, changed)
    write_state(now, report)
    (report / FEED).write_bytes(feed(now))
    return changed


def _entry(row: Row, report: Path) -> Entry:
    run = run_of(report / row.folder) if row.verdict != NOT_JUDGED else None
    distribution = re.split(r"\W*[\[=<>]", row.requirement)[0]
    name = row.name if "." in row.name else f"{distribution}.{row.name}"  # a class is called Attention in many
    return Entry(name, row.requirement, row.folder, row.reason, row.finding, run)


def _judged(package: Package, given: Namespace) -> list[Row]:
    """The rows of a package; one that cannot be installed is one row."""
    try:
        python = environment(package, given.environments, given.constraint)
    except PackageError as error:
        return [_not_judged(package, package.name, str(error))]
    return [_row(package, name, python, given) for name in package.implementations]


def _not_judged(package: Package, name: str, reason: str) -> Row:
    return Row(name, package.name, package.requirement, f"{package.name}.{name}", NOT_JUDGED, reason=reason)


def _row(package: Package, name: str, python: Path, given: Namespace) -> Row:
    folder = given.report / f"{package.name}.{name}"
    now = basis(given, versions(python), package.code, package.conventions)
    last = _last(folder)
    if last == now:
        return _read(package, name, given.report, "as before")
    before = _kept(folder)
    command = [*module_command("attention_conformance"), "check", *package.target(name, python)]
    options = ["--tier", given.tier, "--report", str(folder), *(f"--clause={each}" for each in given.clause)]
    options += [f"--dtype={each}" for each in given.dtype]
    options += [f"--convention={key}={value}" for key, value in package.conventions.items()]
    try:
        whole = [*command, *options]
        done = subprocess.run(whole, capture_output=True, text=True, timeout=LIMIT, preexec_fn=end_with_parent)
    except subprocess.TimeoutExpired:
        return _not_judged(package, name, f"it took longer than {LIMIT:g} s")
    if done.returncode not in (ExitStatus.CONFORMS, ExitStatus.FAILS, ExitStatus.IN_PART):
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        return _not_judged(package, name, f"exit status {done.returncode}: {''.join(lines)[:200]}")
    (folder / STATE).write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    why = reasons(last, now, package.requirement) if last else []
    differs, worse = _compared(before, folder)
    return _read(package, name, given.report, "; ".join([*why, *([differs] if differs else [])]), worse)


def _last(folder: Path) -> Basis | None:
    """What the last report of an implementation rests on; None where there is none."""
    file = folder / STATE
    found: Basis | None = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return found


def _kept(folder: Path) -> Path:
    """Where the last whole report is kept now, if there is one."""
    before = folder.with_name(f"{folder.name}.before")
    if (folder / STATE).is_file():
        shutil.rmtree(before, ignore_errors=True)
        folder.rename(before)
    return before


def _compared(before: Path, folder: Path) -> tuple[str, bool]:
    """What to note of the difference from the last report, and whether less holds."""
    if not before.is_dir():
        return "", False
    old, new = run_of(before), run_of(folder)
    known = {key_of(verdict) for verdict in old.verdicts}
    fresh = [v.clause for v in new.verdicts if v.status is Status.FAIL and v.level == "MUST" and key_of(v) not in known]
    first = f"not judged before, and fails: {', '.join(dict.fromkeys(fresh))}" if fresh else ""
    try:
        changes = compared(old, new).changes
    except IncomparableError:
        return first or "nothing of it was judged before", False
    worse = [change for change in changes if change.worse]
    lost = ", ".join(dict.fromkeys(change.clause or change.implementation for change in worse))
    changed = f"worse than before: {lost}" if worse else f"{len(changes)} changes, none for the worse"
    return "; ".join(filter(None, (changed, first))), bool(worse)


def _read(package: Package, name: str, report: Path, reason: str = "", worse: bool = False) -> Row:
    folder = f"{package.name}.{name}"
    (entry,) = json.loads((report / folder / "report.json").read_text(encoding="utf-8"))["implementations"]
    counts, verdicts = entry["counts"], entry["verdicts"]
    failing = dict.fromkeys(v["clause"] for v in verdicts if v["status"] == "fail" and v["level"] == "MUST")
    return Row(
        entry["name"],
        package.name,
        package.requirement,
        folder,
        entry["verdict"],
        counts["holds"],
        counts["judged"],
        tuple(failing),
        reason,
        worse,
        package.findings.get(name, ""),
    )
