"""Telling: what several views say alike: counts of clauses, and the text of candidates as one harmless line."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import load
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.report.model import Run, Subject
from attention_conformance.tests.report.verdict import Status, Verdict

UNREADABLE = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class Tally:
    """How many clauses ended how; a clause counts once, by the worst of its dtypes.

    Attributes:
        errors: could not be judged.
        advice: a SHOULD or MAY that does not hold.
    """

    fails: int
    errors: int
    advice: int
    known: int
    holds: int

    @property
    def judged(self) -> int:
        """Clauses that were asked at all."""
        return self.fails + self.errors + self.advice + self.known + self.holds


def tally(mine: Iterable[Verdict]) -> Tally:
    """The counts of one implementation."""
    worst: dict[str, int] = {}
    for verdict in mine:
        if (rank := _rank(verdict)) is not None:
            worst[verdict.clause] = min(rank, worst.get(verdict.clause, rank))
    return Tally(*(sum(found == rank for found in worst.values()) for rank in range(5)))


def _rank(verdict: Verdict) -> int | None:
    match verdict.status:
        case Status.FAIL:
            return 0 if verdict.level == "MUST" else 2
        case Status.ERROR:
            return 1
        case Status.EXPECTED_FAILURE:
            return 3
        case Status.PASS:
            return 4
        case Status.NOT_CLAIMED:
            return None


def selected(run: Run) -> str:
    """Such as "--clause masks.* --dtype float64"; empty where everything was asked."""
    suite = run.begin.suite
    options = [*(f"--clause {each}" for each in suite.clauses), *(f"--dtype {each}" for each in suite.dtypes)]
    return " ".join(options)


def clauses(number: int) -> str:
    """Such as "1 clause"."""
    return f"{number} clause{'s' * (number != 1)}"


def by_clause(verdicts: Iterable[Verdict], *statuses: Status) -> Iterator[tuple[Verdict, ...]]:
    """Verdicts with one of these statuses, those on one clause and implementation with the same one together.

    They come in the order of the specification, the widest dtype of a clause first.
    """
    order, dtypes = list(load()), list(DTYPES)
    found: dict[tuple[int, str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.status in statuses:
            place = order.index(verdict.clause) if verdict.clause in order else len(order)
            found.setdefault((place, verdict.clause, verdict.implementation, verdict.status), []).append(verdict)
    for key in sorted(found):
        yield tuple(sorted(found[key], key=lambda v: dtypes.index(v.dtype) if v.dtype in dtypes else len(dtypes)))


def dtypes_of(verdicts: Sequence[Verdict]) -> str:
    """Such as "float64, float32"."""
    return ", ".join(v.dtype for v in verdicts)


@dataclass(frozen=True)
class Told:
    """A failure in words.

    Attributes:
        message: what was found, on the case that shows it most plainly.
        case, answer: the smallest case, and what differs on it.
        again: the command that asks the clause again.
    """

    message: str
    case: str
    answer: str
    again: str


def told(run: Run, verdict: Verdict) -> Told:
    """A failure as the run explained it, or as its verdict alone has it."""
    assert verdict.failure is not None
    message, mine = verdict.failure.message, (verdict.implementation, verdict.clause, verdict.dtype)
    for one in run.shown:
        if (one.implementation, one.clause, one.dtype) == mine and one.again:
            return Told(message, one.case, one.message, one.again)
    subject = next(s for s in run.begin.subjects if s.name == verdict.implementation)
    return Told(message, _in_words(verdict.failure.case), message, _again(subject, verdict))


def _in_words(case: str) -> str:
    try:
        return str(Case.from_json(case))
    except ValueError:
        return case  # of a suite whose cases are others


def _again(subject: Subject, verdict: Verdict) -> str:
    chosen = f"--candidate {subject.target}" if subject.target else f"--implementation {subject.name}"
    return f"pytest {chosen} --clause {verdict.clause} --dtype {verdict.dtype}"


def plain(text: str, most: int = 600) -> str:
    """Text as one line: no line ends, nothing that steers a terminal or turns the direction of writing, no surrogates.

    It has `most` characters at most; what is longer ends in an ellipsis.
    """
    read = text[: 8 * most]
    line = " ".join("".join(map(_harmless, read)).split())
    return line if len(line) <= most and len(read) == len(text) else f"{line[: most - 1]}…"


def _harmless(character: str) -> str:
    if character.isspace():
        return " "
    return UNREADABLE if unicodedata.category(character).startswith("C") else character
