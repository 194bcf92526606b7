"""The view for notebooks: the verdict and the failing clauses as a small piece of HTML, without styles or scripts."""

from collections.abc import Iterator
from html import escape

from attention_conformance.tests.report.counts import Outcome, Row, counts
from attention_conformance.tests.report.model import Run
from attention_conformance.tests.report.verdict import Verdict
from attention_conformance.tests.report.wording import dtypes_of, one_line

MOST = 20
"""Failing clauses that are listed; the report that is written to a folder has all."""


def text(run: Run, verdict: str) -> str:
    """The verdict, the diagnosis, and a row for each failing clause; all text is escaped."""
    return "".join(line for row in counts(run) for line in _lines(run, row, verdict))


def _lines(run: Run, row: Row, verdict: str) -> Iterator[str]:
    name, failing = row.subject.name, list(row.together(Outcome.FAILS, Outcome.ERROR, Outcome.ADVICE))
    yield f"<p><strong>{_safe(name)}: {_safe(verdict)}</strong>: {_safe(row.total.sentence)} ({row.checks} checks)</p>"
    if run.opening.suite.drawn:
        yield f"<p>{_safe(run.opening.suite.drawn)}</p>"
    if diagnosis := run.diagnoses.get(name):
        yield f"<p>Diagnosis: {_safe(diagnosis)}</p>"
    if failing:
        yield "<table><thead><tr><th>clause</th><th>dtypes</th><th>level</th><th>message</th></tr></thead><tbody>"
        yield from map(_clause, failing[:MOST])
        yield "</tbody></table>"
    if len(failing) > MOST:
        yield f"<p>{len(failing) - MOST} more; <code>report.write(folder)</code> writes all.</p>"


def _clause(verdicts: tuple[Verdict, ...]) -> str:
    first = verdicts[0]
    cells = (first.clause, dtypes_of(verdicts), first.level, first.message)
    return f"<tr>{''.join(f'<td>{_safe(cell)}</td>' for cell in cells)}</tr>"


def _safe(text: str) -> str:
    return escape(one_line(text))
