"""The view for terminals: implementations by chapters, clauses that do not hold, and observed behaviour."""

from collections.abc import Iterator, Mapping, Sequence

from attention_conformance.tests.report.counts import LEGEND, Outcome, Row, chapters_of, counts
from attention_conformance.tests.report.model import Run
from attention_conformance.tests.report.verdict import Verdict
from attention_conformance.tests.report.wording import dtypes_of, in_bounds, isolation

SHORT = {"cross-attention": "cross", "projections": "project", "relations": "relate", "gradients": "grads"}
MOST_LINES = 12
"""Of one outcome for one implementation; the report has them all."""
LISTED = (Outcome.FAILS, Outcome.ERROR, Outcome.KNOWN, Outcome.ADVICE)


def lines(run: Run) -> Iterator[str]:
    """The summary of a run, and the behaviour of candidates where the field disagrees."""
    yield from summary(run)
    yield from observed({s.name: run.observed[s.name] for s in run.opening.subjects if s.name in run.observed})
    if not run.closing.complete:
        yield f"not complete: {run.closing.reason}"


def summary(run: Run) -> Iterator[str]:
    """A line for each implementation, and below it the clauses that do not hold."""
    judged = [row for row in counts(run) if row.verdicts]
    width = max([len(s.name) for s in run.opening.subjects], default=4)
    titles = " ".join(f"{SHORT.get(name, name):>8}" for name in chapters_of(run))
    yield f"{'':{width}}  {titles}       all   checks  worst  verdict"
    for row in judged:
        cells = " ".join(f"{cell.text:>8}" for cell in row.cells)
        totals = f"{row.total.text:>8}  {row.checks:7d}  {in_bounds(row.worst) or '-':>5}"
        yield f"{row.subject.name:{width}}  {cells}  {totals}  {row.conformance}{row.condition}{row.notes}"
    yield from ("", f"cells: {LEGEND}", "worst: the largest error in units of its rounding bound")
    if run.opening.suite.drawn:
        yield run.opening.suite.drawn
    for row in judged:
        if row.subject.isolated is False:
            yield f"{row.subject.name} ran {isolation(row.subject)}"
        if row.subject.premises:
            always = ", ".join(row.subject.premises)
            yield f"{row.subject.name} is judged as one that always is: {always}"
        yield from (f"{row.subject.name}: {name!r} {why}" for name, why in row.subject.findings.items())
        yield from _details(row, run.diagnoses.get(row.subject.name, ""))


def _details(row: Row, diagnosis: str) -> Iterator[str]:
    notes = [*row.subject.stated, *row.subject.unclaimed]
    listed = {**{kind: list(row.together(kind)) for kind in LISTED}, Outcome.UNPROVED: list(row.unproved)}
    if notes or any(listed.values()):
        yield from ("", f"{row.subject.name}:")
    yield from (f"  {note}" for note in notes)
    if diagnosis:
        yield f"  diagnosis  {diagnosis}"
    for kind, several in listed.items():
        yield from (f"  {_line(kind, verdicts)}" for verdicts in several[:MOST_LINES])
        if len(several) > MOST_LINES:
            yield f"  ... and {len(several) - MOST_LINES} more clauses ({kind.word}); --report DIR writes them all"


def _line(kind: Outcome, verdicts: Sequence[Verdict]) -> str:
    first = verdicts[0]
    words = {
        Outcome.KNOWN: "known deviation",
        Outcome.ERROR: "ERROR",
        Outcome.FAILS: "FAIL",
        Outcome.UNPROVED: "not provable",
    }
    text = f"{first.reason} {first.link}" if kind is Outcome.KNOWN else first.message
    return f"{words.get(kind, f'advice ({first.level})')}  {first.clause} [{dtypes_of(verdicts)}]: {text}"


def observed(answers: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """The behaviour of candidates where the field disagrees, one topic a line."""
    for name, topics in answers.items():
        yield from ("", f"{name}: observed behaviour where implementations differ (chapter conventions):")
        width = max(map(len, topics), default=0)
        yield from (f"  {topic:{width}}  {answer}" for topic, answer in topics.items())
