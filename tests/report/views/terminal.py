"""The view for terminals: implementations by chapters, what failed, and what was observed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from attention_conformance.spec.clauses import chapters, load
from attention_conformance.tests.report.model import Run, Subject, overall
from attention_conformance.tests.report.verdict import Status, Verdict

SHORT = {"cross-attention": "cross", "projections": "project", "relations": "relate", "gradients": "grads"}
SHOWN = 12
"""Failed clauses shown for one implementation; the report has them all."""


def lines(run: Run) -> Iterator[str]:
    """The summary of a run, and what candidates were seen to do where the field disagrees."""
    yield from summary(run)
    yield from observed({s.name: run.observed[s.name] for s in run.begin.subjects if s.name in run.observed})
    if not run.closing.complete:
        yield f"not complete: {run.closing.reason}"


def summary(run: Run) -> Iterator[str]:
    """A line for each implementation, and below what failed.

    A cell holds the clauses that passed; "2/5" means that 2 of 5 failed, "-" that none is claimed.
    """
    subjects, verdicts = run.begin.subjects, run.verdicts
    shown = [name for name in chapters() if any(v.clause.startswith(f"{name}.") for v in verdicts)]
    width = max([len(s.name) for s in subjects], default=4)
    yield f"{'':{width}}  " + " ".join(f"{SHORT.get(n, n):>8}" for n in shown) + "   checks  worst  verdict"
    judged = [(subject, mine) for subject in subjects if (mine := run.of(subject.name))]
    for subject, mine in judged:
        cells = " ".join(f"{cell(mine, name):>8}" for name in shown)
        checks, worst = sum(v.checks for v in mine), max((v.worst or 0.0 for v in mine), default=0.0)
        yield f"{subject.name:{width}}  {cells}  {checks:7d}  {worst:5.2g}  {verdict_of(mine)}"
    yield ""
    yield "cells: clauses that hold; 2/5: 2 of 5 fail; worst: largest error in units of its rounding bound"
    for subject, mine in judged:
        yield from _details(subject, mine, run.diagnoses.get(subject.name, ""))


def verdict_of(mine: Sequence[Verdict]) -> str:
    """Such as "conforms, 2 known deviations"."""
    known = len({v.clause for v in mine if v.status is Status.EXPECTED_FAILURE})
    return overall(mine) + (f", {known} known deviation{'s' * (known > 1)}" if known else "")


def cell(mine: Sequence[Verdict], chapter: str) -> str:
    """How many clauses of a chapter hold."""
    judged = [v for v in mine if v.clause.startswith(f"{chapter}.") and v.status is not Status.NOT_CLAIMED]
    clauses = {v.clause for v in judged}
    failed = {v.clause for v in judged if v.status is not Status.PASS}
    if not clauses:
        return "-"
    return f"{len(failed)}/{len(clauses)}" if failed else str(len(clauses))


def _details(subject: Subject, mine: Sequence[Verdict], diagnosis: str) -> Iterator[str]:
    order = {identifier: number for number, identifier in enumerate(load())}
    by_clause: dict[tuple[Status, str], list[Verdict]] = {}
    for verdict in sorted(mine, key=lambda v: order[v.clause]):
        if verdict.status not in (Status.PASS, Status.NOT_CLAIMED):
            by_clause.setdefault((verdict.status, verdict.clause), []).append(verdict)
    notes = [note for note in subject.about.split("; ") if "not claimed" in note]
    if by_clause or notes:
        yield ""
        yield f"{subject.name}:"
    yield from (f"  {note}" for note in notes)
    if diagnosis:
        yield f"  diagnosis  {diagnosis}"
    seen: Counter[Status] = Counter()
    for (status, clause), found in by_clause.items():
        seen[status] += 1
        if seen[status] <= SHOWN:
            yield f"  {_line(status, clause, found)}"
        elif seen[status] == SHOWN + 1:
            yield f"  ... and more with status {status}; --report DIR writes them all"


def _line(status: Status, clause: str, found: Sequence[Verdict]) -> str:
    dtypes = ", ".join(v.dtype for v in found)
    first = found[0]
    if status is Status.EXPECTED_FAILURE:
        return f"known deviation  {clause} [{dtypes}]: {first.reason} {first.link}"
    if status is Status.ERROR:
        return f"ERROR  {clause} [{dtypes}]: {first.reason}"
    word = "FAIL" if first.level == "MUST" else f"advice ({first.level})"
    assert first.failure is not None
    return f"{word}  {clause} [{dtypes}]: {first.failure.message}"


def observed(found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """What candidates were seen to do where the field disagrees, one question a line."""
    for name, told in found.items():
        yield ""
        yield f"{name} was seen to do, where implementations differ (chapter conventions):"
        width = max(map(len, told), default=0)
        yield from (f"  {question:{width}}  {answer}" for question, answer in told.items())
