"""The first screen: the verdict on one implementation and its cause, its smallest failing case, and what fails."""

from collections.abc import Iterator, Sequence
from string import digits
from textwrap import wrap

from attention_conformance.tests.report.counts import Conformance, Outcome, Row, counts
from attention_conformance.tests.report.model import Run
from attention_conformance.tests.report.verdict import Failure, FailureKind, Status, Verdict
from attention_conformance.tests.report.wording import dtypes_of, isolation, one_line

WIDTH, MOST_LINES = 80, 30
"""Of the screen; the commands that follow have some eight lines."""
MOST_OF_CAUSE, MOST_OF_CASE, MOST_OF_NOTES, MOST_LISTED = 5, 11, 3, 8
MOST_OF_EXCEPTION = 4
MOST_OF_HEADING = 3
"""Lines of the sizes and options of a case: the option that matters may be the last one."""
WITHOUT_DIGITS = str.maketrans("", "", digits)
LISTED = {
    Outcome.FAILS: "FAIL",
    Outcome.ERROR: "ERROR",
    Outcome.KNOWN: "known deviation",
    Outcome.ADVICE: "advice",
}
"""Outcomes that are listed a clause a line, in this order, as far as there is room."""

MOST_OF_NOTE = 3
"""Lines of one of what is stated."""


def lines(run: Run, case: Sequence[str] = ()) -> Iterator[str]:
    """The screen of the only implementation of a run; `case` has the lines of its smallest failing case."""
    (row,) = [row for row in counts(run) if row.verdicts]
    text = [*_verdict(row, run), *_paragraph(_cause(row, run), MOST_OF_CAUSE), *_case(case), *_notes(row)]
    listed = list(_listed(row, MOST_LINES - len(text) - 4))
    yield from [*text, *(["", *listed] if listed else []), *_holding(row)]


def cause(name: str, diagnosis: str) -> Iterator[str]:
    """The lines that are printed at the first failure, while the rest is still checked."""
    yield from _paragraph(f"{name} fails; {diagnosis}", MOST_OF_CAUSE)


def _verdict(row: Row, run: Run) -> Iterator[str]:
    yield from _paragraph(f"{row.subject.name} {row.conformance}{row.condition}{row.notes}: {row.total.sentence}", 3)
    for name, why in row.subject.findings.items():
        yield from _paragraph(f"  {name!r}: {why}", MOST_OF_NOTE)
    if row.subject.isolated is False:
        yield f"{row.subject.name} ran {isolation(row.subject)}"
    if row.subject.premises:
        yield from _paragraph(f"judged as one that always is: {', '.join(row.subject.premises)}", 2)
    if not run.closing.complete and run.closing.reason:
        yield from _paragraph(f"not complete: {run.closing.reason}", 2)


def _cause(row: Row, run: Run) -> str:
    """The diagnosis, or why the candidate was not checked to the end."""
    if diagnosis := run.diagnoses.get(row.subject.name, ""):
        return f"  diagnosis: {diagnosis}"
    lost = next((v.reason for v in row.verdicts if v.status is Status.NOT_FINISHED), "")
    return f"  cause: {lost}" if lost else ""


def _paragraph(text: str, most: int) -> list[str]:
    """The text in lines of the screen's width, cut after so many; the indentation of the first is kept."""
    margin = "  " if text.startswith("  ") else ""
    made = wrap(one_line(text), WIDTH, initial_indent=margin, subsequent_indent="  ", break_on_hyphens=False)
    return made if len(made) <= most else [*made[: most - 1], f"{made[most - 1][: WIDTH - 5]} ..."]


def _case(case: Sequence[str]) -> list[str]:
    """The lines of a case, cut to the screen; the last one, the difference, stays."""
    of_sizes = _paragraph(case[0], MOST_OF_HEADING) if case else []
    shown = [*case[1 : MOST_OF_CASE - 1], case[-1]] if len(case) > MOST_OF_CASE else list(case[1:])
    return ["", *of_sizes, *(line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in shown)] if case else []


def _cut(start: str, text: str) -> str:
    return f"{start}{one_line(text, WIDTH - len(start))}"


def _notes(row: Row) -> list[str]:
    stated = [line for note in row.subject.stated for line in _paragraph(f"  {note}", MOST_OF_NOTE)]
    notes = row.subject.unclaimed
    shown = [_cut("  ", note) for note in notes[:MOST_OF_NOTES]]
    more = (
        [f"  ... and {len(notes) - MOST_OF_NOTES} more not claimed: -v lists them"] if len(notes) > len(shown) else []
    )
    found = (f"  a case of {v.clause} [{v.dtype}] was left out: {v.left_out}" for v in row.verdicts if v.left_out)
    left_out = [line for note in found for line in _paragraph(note, MOST_OF_NOTE)]
    return ["", *stated, *shown, *more, *left_out] if stated or notes or left_out else []


def _listed(row: Row, room: int) -> Iterator[str]:
    """The clauses that do not hold, those that raise the same exception as one finding."""
    most, used = max(3, min(MOST_LISTED, room)), 0
    for kind, word in LISTED.items():
        findings = _findings(list(row.together(kind)))
        for shown, clauses in enumerate(findings):
            text = list(_finding(f"{word}  ", clauses, row))
            if shown >= most or (shown and used + len(text) > max(room, 3)):
                left = sum(map(len, findings[shown:]))
                yield f"  ... and {left} more clauses ({kind.word}): -v lists them, --report DIR writes them all"
                break
            yield from text
            used += len(text)
        most = 3


def _findings(clauses: Sequence[tuple[Verdict, ...]]) -> list[list[tuple[Verdict, ...]]]:
    """Clauses that fail by the same exception together; each other one alone."""
    found: dict[str, list[tuple[Verdict, ...]]] = {}
    for verdicts in clauses:
        failure = verdicts[0].failure
        same = failure is not None and failure.kind is FailureKind.RAISED
        found.setdefault(_exception(failure) if failure and same else verdicts[0].clause, []).append(verdicts)
    return list(found.values())


def _exception(failure: Failure) -> str:
    """What identical exceptions have in common: numbers such as sizes are those of the case."""
    return f"{failure.place} {failure.message.rpartition('raised ')[2].translate(WITHOUT_DIGITS)}"


def _finding(start: str, clauses: Sequence[tuple[Verdict, ...]], row: Row) -> Iterator[str]:
    """One line; for an exception its whole message, and where it was raised."""
    failure = clauses[0][0].failure
    if failure is None or failure.kind is not FailureKind.RAISED:
        yield _cut(start, _line(clauses, row))
        return
    place = f" ({failure.place})" if failure.place else ""
    text = wrap(one_line(_line(clauses, row) + place), WIDTH - len(start), break_on_hyphens=False)
    yield from (
        f"{start if not number else ' ' * len(start)}{line}" for number, line in enumerate(text[:MOST_OF_EXCEPTION])
    )


def _line(clauses: Sequence[tuple[Verdict, ...]], row: Row) -> str:
    first = clauses[0]
    dtypes = "all dtypes" if len(first) == len(row.dtypes) > 2 else dtypes_of(first)
    others = f" and {len(clauses) - 1} more" if len(clauses) > 1 else ""
    return f"{first[0].clause}{others} [{dtypes}]: {first[0].message}"


def _holding(row: Row) -> list[str]:
    """What holds: the chapters without a clause that does not."""
    whole = [cell.chapter for cell in row.cells if cell.outcome is Outcome.HOLDS]
    if not whole or row.conformance is Conformance.NOTHING_CHECKED:
        return []
    return ["", *_paragraph(f"holds in {', '.join(row.dtypes)}: {', '.join(whole)}", 3)]
