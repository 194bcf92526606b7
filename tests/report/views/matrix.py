"""The matrix of a run: implementations x chapters, and below each cell its clauses by dtype."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from attention_conformance.spec.clauses import Clause, Level, chapters, load
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.report.model import Run, Subject, overall
from attention_conformance.tests.report.text import plain
from attention_conformance.tests.report.verdict import Status, Verdict


class Kind(Enum):
    """What a clause came to: its class in the style sheet, its sign, its word, and what one or more of them do.

    The worst comes first.
    """

    FAILS = "f", "✗", "fails", "fails", "fail"
    ERROR = "x", "?", "error", "could not be judged", "could not be judged"
    ADVICE = "a", "!", "advice", "should hold and does not", "should hold and do not"
    KNOWN = "k", "≈", "known deviation", "deviates, as is known", "deviate, as is known"
    HOLDS = "h", "✓", "holds", "holds", "hold"
    UNCLAIMED = "u", "-", "not claimed", "is not claimed", "are not claimed"
    UNASKED = "n", "·", "not asked", "was not asked", "were not asked"

    @property
    def style(self) -> str:
        return self.value[0]

    @property
    def sign(self) -> str:
        return self.value[1]

    @property
    def word(self) -> str:
        return self.value[2]

    def does(self, number: int) -> str:
        """What so many clauses of this kind do."""
        return self.value[3] if number == 1 else self.value[4]


ORDER = list(Kind)
BROKEN = (Kind.FAILS, Kind.ERROR, Kind.ADVICE, Kind.KNOWN)
MEANINGS = {
    Kind.HOLDS: "every check held, in every dtype asked",
    Kind.FAILS: "a MUST is broken",
    Kind.KNOWN: "fails, as a public report says it does",
    Kind.ADVICE: "a SHOULD or MAY does not hold",
    Kind.ERROR: "the suite could not judge",
    Kind.UNCLAIMED: "the feature is not claimed, or cannot be asked here: not judged",
    Kind.UNASKED: "left out of this run, or not reached",
}


def kind_of(verdict: Verdict) -> Kind:
    """The kind of one verdict."""
    match verdict.status:
        case Status.FAIL:
            return Kind.FAILS if verdict.level == Level.MUST else Kind.ADVICE
        case Status.EXPECTED_FAILURE:
            return Kind.KNOWN
        case Status.ERROR:
            return Kind.ERROR
        case Status.PASS:
            return Kind.HOLDS
        case Status.NOT_CLAIMED:
            return Kind.UNCLAIMED


def worst(kinds: Iterable[Kind]) -> Kind:
    """The first of them in the order of `Kind`; not asked, if there are none."""
    return min(kinds, key=ORDER.index, default=Kind.UNASKED)


@dataclass(frozen=True)
class Row:
    """A clause, as one implementation was asked.

    Attributes:
        cells: its verdict in each dtype of the implementation, the worst where there are several; None for none.
        reasons: why it was not judged, or is known; each once, with its dtypes and its link.
    """

    clause: str
    cells: tuple[Verdict | None, ...]
    reasons: tuple[tuple[str, str, str], ...]

    @property
    def verdicts(self) -> list[Verdict]:
        return [v for v in self.cells if v is not None]

    @property
    def kind(self) -> Kind:
        return worst(map(kind_of, self.verdicts))

    @property
    def alike(self) -> bool:
        """Whether it holds in every dtype."""
        return all(v is not None and kind_of(v) is Kind.HOLDS for v in self.cells)


@dataclass(frozen=True)
class Cell:
    """A chapter, as one implementation was asked.

    Attributes:
        kind: that of its worst clause.
        complete: whether the run is.
    """

    chapter: str
    rows: tuple[Row, ...]
    kind: Kind
    complete: bool

    @property
    def judged(self) -> int:
        return sum(row.kind is not Kind.UNCLAIMED for row in self.rows)

    @property
    def alike(self) -> int:
        """How many clauses are of its kind."""
        return sum(row.kind is self.kind for row in self.rows)

    @property
    def counts(self) -> str:
        """How many clauses were judged, or how many of them are of its kind."""
        if self.kind in BROKEN:
            return f"{self.alike}/{self.judged}"
        return str(self.judged) if self.judged else ""

    @property
    def words(self) -> str:
        """Such as "2 of 7 clauses fail"."""
        if not self.judged:
            return self.kind.word
        share = f"{self.alike} of {self.judged}" if self.alike < self.judged else f"all {self.judged}"
        asked = f"{share} clauses" if self.judged > 1 else "one clause"
        return f"{asked}{'' if self.complete else ' so far'} {self.kind.does(self.alike)}"


@dataclass(frozen=True)
class Line:
    """An implementation in the matrix."""

    subject: Subject
    mine: tuple[Verdict, ...]
    dtypes: tuple[str, ...]
    cells: tuple[Cell, ...]
    state: str

    @property
    def rows(self) -> list[Row]:
        return [row for cell in self.cells for row in cell.rows]

    def count(self, kind: Kind) -> int:
        """How many clauses came to this."""
        return sum(row.kind is kind for row in self.rows)

    @property
    def judged(self) -> int:
        return sum(row.kind is not Kind.UNCLAIMED for row in self.rows)

    @property
    def checks(self) -> int:
        return sum(v.checks for v in self.mine)

    @property
    def worst(self) -> float | None:
        return max((v.worst for v in self.mine if v.worst is not None), default=None)


def columns(run: Run) -> list[str]:
    """The chapters of which anything was asked, in order."""
    asked = {_chapter(v.clause) for v in run.verdicts}
    return [name for name in chapters() if name in asked] + sorted(asked - set(chapters()))


def lines(run: Run) -> list[Line]:
    """The matrix, in the order of the run."""
    named: dict[str, list[Verdict]] = {subject.name: [] for subject in run.begin.subjects}
    for verdict in run.verdicts:
        named.setdefault(verdict.implementation, []).append(verdict)
    shown = columns(run)
    return [_line(subject, tuple(named[subject.name]), shown, run.closing.complete) for subject in run.begin.subjects]


def _line(subject: Subject, mine: tuple[Verdict, ...], shown: Sequence[str], complete: bool) -> Line:
    dtypes = tuple(sorted({v.dtype for v in mine}, key=_widest))
    by_chapter: dict[str, dict[str, list[Verdict]]] = {name: {} for name in shown}
    for verdict in mine:
        by_chapter[_chapter(verdict.clause)].setdefault(verdict.clause, []).append(verdict)
    cells = tuple(_cell(name, found, dtypes, subject, complete) for name, found in by_chapter.items())
    return Line(subject, mine, dtypes, cells, _state(mine, complete))


def _chapter(clause: str) -> str:
    return clause.partition(".")[0]


def _widest(dtype: str) -> tuple[int, str]:
    known = list(DTYPES)
    return known.index(dtype) if dtype in known else len(known), dtype


def _state(mine: Sequence[Verdict], complete: bool) -> str:
    """The verdict on an implementation. What conforms in a run that is not complete is undecided."""
    if not mine:
        return "not asked" if complete else "undecided"
    found = overall(mine)
    return "undecided" if found == "conforms" and not complete else found


def _cell(
    chapter: str, found: Mapping[str, list[Verdict]], dtypes: Sequence[str], subject: Subject, complete: bool
) -> Cell:
    order = list(load())
    known = sorted(found, key=lambda clause: order.index(clause) if clause in order else len(order))
    rows = tuple(_clause_row(clause, found[clause], dtypes) for clause in known)
    kind = worst(row.kind for row in rows) if rows else _absent(chapter, subject)
    return Cell(chapter, rows, kind, complete)


def _absent(chapter: str, subject: Subject) -> Kind:
    """Why an implementation has no verdict in a chapter of which others have some."""
    of_it = [clause for clause in load().values() if clause.chapter == chapter]
    return Kind.UNASKED if any(_claimed(clause, subject) for clause in of_it) else Kind.UNCLAIMED


def _claimed(clause: Clause, subject: Subject) -> bool:
    return clause.features <= set(subject.features) and clause.scope in (None, subject.scope) and not clause.measured


def _clause_row(clause: str, found: Sequence[Verdict], dtypes: Sequence[str]) -> Row:
    by_dtype: dict[str, list[Verdict]] = {}
    for verdict in found:
        by_dtype.setdefault(verdict.dtype, []).append(verdict)
    cells = tuple(min(by_dtype[d], key=lambda v: ORDER.index(kind_of(v))) if d in by_dtype else None for d in dtypes)
    return Row(clause, cells, tuple(_reasons([v for v in cells if v is not None and v.reason])))


def _reasons(found: Sequence[Verdict]) -> Iterator[tuple[str, str, str]]:
    for reason, link in dict.fromkeys((v.reason, v.link) for v in found):
        mine = [v.dtype for v in found if (v.reason, v.link) == (reason, link)]
        yield ", ".join(mine), plain(reason), link
