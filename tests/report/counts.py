"""Counts of a run by clause, chapter and implementation, made here once for all views.

A clause counts once, by its worst dtype. Only clauses that were judged are counted: those that hold, fail, could not be
judged, are known deviations, or are advice that is not followed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from itertools import product

from attention_conformance.spec.clauses import Clause, Level, chapters, load
from attention_conformance.spec.premises import NO_PREMISES
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.report.model import Run, Subject
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.report.wording import one_line

LEGEND = (
    "5: all 5 judged clauses of the chapter hold, in every dtype; 4/5: 4 of 5 hold; "
    "-: not claimed; ~: not provable; ·: not checked"
)
"""The meaning of a cell of the matrix, in every view."""


class Outcome(Enum):
    """The outcome of a clause, the worst first.

    A value has the class in style sheets, the sign, the name, and the words after the number of one or several clauses.
    """

    FAILS = "f", "✗", "fails", "fails", "fail"
    ERROR = "x", "?", "error", "could not be judged", "could not be judged"
    ADVICE = "a", "!", "advice", "advice not followed", "advice not followed"
    KNOWN = "k", "≈", "known deviation", "known deviation", "known deviations"
    HOLDS = "h", "✓", "holds", "holds", "hold"
    UNPROVED = "p", "~", "not provable", "not provable in its dtypes", "not provable in its dtypes"
    UNCLAIMED = "u", "-", "not claimed", "not claimed", "not claimed"
    NOT_CHECKED = "n", "·", "not checked", "not checked", "not checked"

    def __init__(self, style: str, sign: str, word: str, one: str, several: str) -> None:
        self.style, self.sign, self.word, self.one, self.several = style, sign, word, one, several

    def counted(self, number: int) -> str:
        """Such as "2 known deviations"."""
        return f"{number} {self.one if number == 1 else self.several}"


ORDER = list(Outcome)
BROKEN = (Outcome.FAILS, Outcome.ERROR, Outcome.KNOWN, Outcome.ADVICE)
"""Outcomes of clauses that do not hold, in the order of lists."""
MEANINGS = {
    Outcome.HOLDS: "every check held, in every dtype of the run",
    Outcome.FAILS: "a MUST is broken",
    Outcome.KNOWN: "fails, as a public report states",
    Outcome.ADVICE: "a SHOULD or MAY does not hold",
    Outcome.ERROR: "the suite could not judge",
    Outcome.UNPROVED: "the rounding bounds of its half types are too wide to prove anything: not judged",
    Outcome.UNCLAIMED: "the feature is not claimed, or cannot be checked here: not judged",
    Outcome.NOT_CHECKED: "left out of this run, or not reached",
}


class Conformance(StrEnum):
    """The verdict on an implementation; the list is closed."""

    CONFORMS = "conforms"
    """No check found a violation of what is claimed."""
    IN_PART = "conforms in part"
    """The same, of an interface that names more than is judged."""
    FAILS = "fails"
    """A MUST does not hold."""
    ERROR = "error"
    """The suite could not judge a clause, or an expected failure passed, or a claim was not checked."""
    UNDECIDED = "undecided"
    """No failure so far, in a run that is not complete."""
    NOTHING_CHECKED = "nothing checked"
    """No clause that was selected is claimed, in no dtype that was selected."""


HELD = (Conformance.CONFORMS, Conformance.IN_PART)
"""Verdicts in which every MUST of what is claimed holds."""


def outcome(verdict: Verdict) -> Outcome:
    """The outcome that one verdict counts as."""
    match verdict.status:
        case Status.FAIL:
            return Outcome.FAILS if verdict.level == Level.MUST else Outcome.ADVICE
        case Status.EXPECTED_FAILURE:
            return Outcome.KNOWN
        case Status.ERROR | Status.NOT_FINISHED:
            return Outcome.ERROR
        case Status.PASS:
            return Outcome.HOLDS
        case Status.NOT_PROVABLE:
            return Outcome.UNPROVED
        case Status.NOT_CLAIMED:
            return Outcome.UNCLAIMED


def conformance(verdicts: Sequence[Verdict], complete: bool, findings: bool = False) -> Conformance:
    """The verdict on an implementation. In a run that is not complete, none conforms; with findings, only in part."""
    outcomes = set(map(outcome, verdicts))
    if Outcome.FAILS in outcomes or any(v.status is Status.NOT_FINISHED for v in verdicts):
        return Conformance.FAILS
    if Outcome.ERROR in outcomes:
        return Conformance.ERROR
    if not complete:
        return Conformance.UNDECIDED
    if not any(v.checks for v in verdicts):
        return Conformance.NOTHING_CHECKED
    return Conformance.IN_PART if findings else Conformance.CONFORMS


def _worst(outcomes: Iterable[Outcome], absent: Outcome) -> Outcome:
    return min(outcomes, key=ORDER.index, default=absent)


@dataclass(frozen=True)
class ClauseCount:
    """A clause, as one implementation was judged by it.

    Attributes:
        cells: its verdict in each dtype of the implementation, the worst if there are several; None for none.
    """

    clause: str
    cells: tuple[Verdict | None, ...]

    @property
    def verdicts(self) -> list[Verdict]:
        return [v for v in self.cells if v is not None]

    @property
    def outcome(self) -> Outcome:
        return _worst(map(outcome, self.verdicts), Outcome.NOT_CHECKED)

    @property
    def holds_everywhere(self) -> bool:
        """Whether it holds in every dtype of the implementation."""
        return all(v is not None and outcome(v) is Outcome.HOLDS for v in self.cells)


@dataclass(frozen=True)
class Counts:
    """A cell of the matrix: how many clauses of one implementation have which outcome.

    Attributes:
        complete: whether the run is.
        chapter: empty for all chapters together.
        absent: the outcome of a cell without clauses.
    """

    clauses: tuple[ClauseCount, ...]
    complete: bool
    chapter: str = ""
    absent: Outcome = Outcome.NOT_CHECKED

    @property
    def outcome(self) -> Outcome:
        """That of the worst clause."""
        return _worst((clause.outcome for clause in self.clauses), self.absent)

    def number(self, kind: Outcome) -> int:
        return sum(clause.outcome is kind for clause in self.clauses)

    @property
    def judged(self) -> int:
        return len(self.clauses) - self.number(Outcome.UNCLAIMED) - self.number(Outcome.UNPROVED)

    @property
    def holds(self) -> int:
        return self.number(Outcome.HOLDS)

    @property
    def fraction(self) -> str:
        """Such as "5" if all 5 hold, and "4/5" if 4 of 5 do; empty if none was judged."""
        if not self.judged:
            return ""
        return str(self.judged) if self.holds == self.judged else f"{self.holds}/{self.judged}"

    @property
    def text(self) -> str:
        """The fraction, or the sign of a cell without one."""
        return self.fraction or self.outcome.sign

    def exceptions(self, *kinds: Outcome) -> str:
        """Such as ", 1 fails, 2 known deviations"; empty if there are none."""
        return "".join(f", {kind.counted(number)}" for kind in kinds if (number := self.number(kind)))

    @property
    def sentence(self) -> str:
        """Such as "4 of 6 clauses hold, 2 fail"."""
        if not self.judged:
            return self.outcome.word
        clauses = "clause holds" if self.judged == 1 else "clauses hold"
        so_far = "" if self.complete else " so far"
        return f"{self.holds} of {self.judged} {clauses}{so_far}{self.exceptions(*BROKEN, Outcome.UNPROVED)}"


@dataclass(frozen=True)
class Row:
    """A row of the matrix: an implementation with its chapters, and all of them together."""

    subject: Subject
    verdicts: tuple[Verdict, ...]
    dtypes: tuple[str, ...]
    total: Counts
    cells: tuple[Counts, ...]

    @property
    def conformance(self) -> Conformance:
        return conformance(self.verdicts, self.total.complete, bool(self.subject.findings))

    @property
    def condition(self) -> str:
        """What the verdict leaves out, and what it takes from behaviour alone; empty if there is neither."""
        without = f", but for {', '.join(map(repr, self.subject.findings))}" if self.subject.findings else ""
        return one_line(f"{without}{''.join(f', {each}' for each in self.subject.as_seen)}")

    @property
    def notes(self) -> str:
        """Outcomes that do not change the verdict, such as ", 1 known deviation"."""
        return self.total.exceptions(Outcome.KNOWN, Outcome.ADVICE, Outcome.UNPROVED)

    @property
    def checks(self) -> int:
        return sum(v.checks for v in self.verdicts)

    @property
    def worst(self) -> float | None:
        """The largest error in units of its rounding bound."""
        return max((v.worst for v in self.verdicts if v.worst is not None), default=None)

    def together(self, *kinds: Outcome) -> Iterator[tuple[Verdict, ...]]:
        """The verdicts of these kinds, those of one kind on one clause together, the widest dtype first."""
        for clause, kind in product(self.total.clauses, kinds):
            if several := tuple(v for v in clause.verdicts if outcome(v) is kind):
                yield several

    @property
    def unproved(self) -> Iterator[tuple[Verdict, ...]]:
        """The verdicts on each clause of which nothing can be proved in any dtype."""
        yield from (tuple(clause.verdicts) for clause in self.total.clauses if clause.outcome is Outcome.UNPROVED)


def chapters_of(run: Run) -> list[str]:
    """The chapters of which any clause was run, in order."""
    names = {_chapter(v.clause) for v in run.verdicts}
    return [name for name in chapters() if name in names] + sorted(names - set(chapters()))


def counts(run: Run) -> list[Row]:
    """The matrix of a run, in its own order."""
    columns = chapters_of(run)
    return [_row(subject, run.by_name[subject.name], columns, run) for subject in run.opening.subjects]


def _row(subject: Subject, verdicts: tuple[Verdict, ...], columns: Sequence[str], run: Run) -> Row:
    dtypes = tuple(sorted({v.dtype for v in verdicts}, key=dtype_place))
    total = Counts(tuple(_clauses(verdicts, dtypes)), run.closing.complete)
    return Row(subject, verdicts, dtypes, total, tuple(_cell(name, total, subject) for name in columns))


def _clauses(verdicts: Sequence[Verdict], dtypes: Sequence[str]) -> Iterator[ClauseCount]:
    worst: dict[str, dict[str, Verdict]] = {}
    for verdict in sorted(verdicts, key=lambda v: ORDER.index(outcome(v))):
        worst.setdefault(verdict.clause, {}).setdefault(verdict.dtype, verdict)
    for clause in sorted(worst, key=clause_place):
        yield ClauseCount(clause, tuple(map(worst[clause].get, dtypes)))


def _cell(chapter: str, total: Counts, subject: Subject) -> Counts:
    """A chapter without verdicts, of which other implementations have some, is not claimed, or was not checked."""
    unchecked = any(clause.chapter == chapter and claimed(clause, subject) for clause in load().values())
    own = tuple(clause for clause in total.clauses if _chapter(clause.clause) == chapter)
    return Counts(own, total.complete, chapter, Outcome.NOT_CHECKED if unchecked else Outcome.UNCLAIMED)


def claimed(clause: Clause, subject: Subject) -> bool:
    """Whether the clause is checked of this implementation."""
    premises = NO_PREMISES.assuming(subject.premises)
    offered = {*subject.features, *premises.features}
    fits = clause.scope in (None, subject.scope) and not clause.presumes & premises.names
    return not clause.lacking(offered.__contains__) and fits and not clause.measured


def _chapter(clause: str) -> str:
    return clause.partition(".")[0]


def clause_place(clause: str) -> tuple[int, str]:
    """Sorts clauses as the specification does; unknown ones come last."""
    return _place(clause, list(load()))


def dtype_place(dtype: str) -> tuple[int, str]:
    """Sorts dtypes, the widest first; unknown ones come last."""
    return _place(dtype, list(DTYPES))


def _place(name: str, order: Sequence[str]) -> tuple[int, str]:
    return order.index(name) if name in order else len(order), name
