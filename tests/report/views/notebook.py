"""The view for notebooks: the verdict and the failing clauses as a small piece of HTML, without styles or scripts."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from attention_conformance.tests.report.model import Run, Subject
from attention_conformance.tests.report.text import plain
from attention_conformance.tests.report.verdict import Status, Verdict

MOST = 20
"""Failing clauses that are listed; the report that is written to a folder has all."""


def text(run: Run, verdict: str) -> str:
    """The verdict, the diagnosis, and a row for each failing clause and dtype; all text is escaped."""
    return "".join(line for subject in run.begin.subjects for line in _lines(run, subject, verdict))


def _lines(run: Run, subject: Subject, verdict: str) -> Iterator[str]:
    mine = run.of(subject.name)
    failing = [v for v in mine if v.status in (Status.FAIL, Status.ERROR)]
    checks, clauses = sum(v.checks for v in mine), len({v.clause for v in mine})
    yield f"<p><strong>{_safe(subject.name)}: {_safe(verdict)}</strong> ({checks} checks of {clauses} clauses)</p>"
    if diagnosis := run.diagnoses.get(subject.name):
        yield f"<p>Diagnosis: {_safe(diagnosis)}</p>"
    if failing:
        yield "<table><thead><tr><th>clause</th><th>dtype</th><th>level</th><th>message</th></tr></thead><tbody>"
        yield from map(_row, failing[:MOST])
        yield "</tbody></table>"
    if len(failing) > MOST:
        yield f"<p>{len(failing) - MOST} more; <code>report.write(folder)</code> writes all.</p>"


def _row(verdict: Verdict) -> str:
    message = verdict.reason if verdict.failure is None else verdict.failure.message
    cells = (verdict.clause, verdict.dtype, verdict.level, message)
    return f"<tr>{''.join(f'<td>{_safe(cell)}</td>' for cell in cells)}</tr>"


def _safe(text: str) -> str:
    return escape(plain(text))
