"""The terminal summary: implementations by chapters, what failed, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from implementations.contract import Implementation
from spec.clauses import chapters, load
from tests.harness.report import overall
from tests.harness.verdicts import Status, Verdict

SHORT = {"cross-attention": "cross", "projections": "project", "relations": "relate", "gradients": "grads"}
SHOWN = 12
"""Failed clauses shown for one implementation; the report has them all."""


def summary(
    implementations: Sequence[Implementation], verdicts: Sequence[Verdict], diagnoses: Mapping[str, str]
) -> Iterator[str]:
    """The lines of the summary.

    A cell holds the clauses that passed; "2/5" means that 2 of 5 failed, "-" that none is claimed.
    """
    shown = [name for name in chapters() if any(v.clause.startswith(f"{name}.") for v in verdicts)]
    width = max([len(i.name) for i in implementations], default=4)
    yield f"{'':{width}}  " + " ".join(f"{SHORT.get(n, n):>8}" for n in shown) + "   checks  worst  verdict"
    for implementation in implementations:
        mine = [v for v in verdicts if v.implementation == implementation.name]
        if not mine:
            continue
        cells = " ".join(f"{_cell(mine, name):>8}" for name in shown)
        checks, worst = sum(v.checks for v in mine), max((v.worst or 0.0 for v in mine), default=0.0)
        yield f"{implementation.name:{width}}  {cells}  {checks:7d}  {worst:5.2g}  {_verdict(mine)}"
    yield ""
    yield "cells: clauses that hold; 2/5: 2 of 5 fail; worst: largest error in units of its rounding bound"
    for implementation in implementations:
        mine = [v for v in verdicts if v.implementation == implementation.name]
        yield from _details(implementation, mine, diagnoses.get(implementation.name, ""))


def _verdict(mine: Sequence[Verdict]) -> str:
    known = len({v.clause for v in mine if v.status is Status.EXPECTED_FAILURE})
    return overall(mine) + (f", {known} known deviation{'s' * (known > 1)}" if known else "")


def _cell(mine: Sequence[Verdict], chapter: str) -> str:
    judged = [v for v in mine if v.clause.startswith(f"{chapter}.") and v.status is not Status.NOT_CLAIMED]
    clauses = {v.clause for v in judged}
    failed = {v.clause for v in judged if v.status is not Status.PASS}
    if not clauses:
        return "-"
    return f"{len(failed)}/{len(clauses)}" if failed else str(len(clauses))


def _details(implementation: Implementation, mine: Sequence[Verdict], diagnosis: str) -> Iterator[str]:
    order = {identifier: number for number, identifier in enumerate(load())}
    by_clause: dict[tuple[Status, str], list[Verdict]] = {}
    for verdict in sorted(mine, key=lambda v: order[v.clause]):
        if verdict.status not in (Status.PASS, Status.NOT_CLAIMED):
            by_clause.setdefault((verdict.status, verdict.clause), []).append(verdict)
    notes = [note for note in implementation.about.split("; ") if "not claimed" in note]
    if by_clause or notes:
        yield ""
        yield f"{implementation.name}:"
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
