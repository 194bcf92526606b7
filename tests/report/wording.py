"""Wording that several views share: numbers, selections, failures, and text of candidates as one safe line."""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from attention_conformance.spec.cases import Case
from attention_conformance.tests.report.model import Run, Subject, key_of
from attention_conformance.tests.report.verdict import Verdict

UNREADABLE = "\N{REPLACEMENT CHARACTER}"


def selected(run: Run) -> str:
    """Such as "--clause masks.* --dtype float64"; empty if everything was selected."""
    suite = run.opening.suite
    options = [*(f"--clause {each}" for each in suite.clauses), *(f"--dtype {each}" for each in suite.dtypes)]
    options += [f"--shard {suite.shard}"] if suite.shard else []
    return " ".join(options)


def isolation(subject: Subject) -> str:
    """Where a candidate ran; empty for a built-in implementation."""
    if subject.isolated is None:
        return ""
    return "in a process of its own" if subject.isolated else "in the judge's process: nothing was isolated"


def dtypes_of(verdicts: Sequence[Verdict]) -> str:
    """Such as "float64, float32"."""
    return ", ".join(v.dtype for v in verdicts)


def in_bounds(value: float | None) -> str:
    """An error in units of its bound, in two digits; "" for none."""
    if value is None:
        return ""
    return "<0.01" if 0.0 < value < 0.01 else f"{value:.2g}"


@dataclass(frozen=True)
class FailureText:
    """A failure in words.

    Attributes:
        message: the difference, on the case that shows it most plainly.
        case, reduced_message: the smallest case, and the difference on it.
        command: runs the clause again.
    """

    message: str
    case: str
    reduced_message: str
    command: str


def failure_text(run: Run, verdict: Verdict) -> FailureText:
    """A failure as the run explained it, or as its verdict alone has it."""
    assert verdict.failure is not None
    message = verdict.failure.message
    if (record := run.explained.get(key_of(verdict))) and record.command:
        return FailureText(message, record.case, record.message, record.command)
    subject = next(s for s in run.opening.subjects if s.name == verdict.implementation)
    return FailureText(message, _in_words(verdict.failure.case), message, _command(subject, verdict))


def _in_words(case: str) -> str:
    try:
        return str(Case.from_json(case))
    except ValueError:
        return case  # of a suite whose cases are others


def _command(subject: Subject, verdict: Verdict) -> str:
    chosen = f"--candidate {subject.target}" if subject.target else f"--implementation {subject.name}"
    return f"pytest {chosen} --clause {verdict.clause} --dtype {verdict.dtype}"


def one_line(text: str, most: int = 600) -> str:
    """Text as one line: no line ends, no surrogates, nothing that steers a terminal or the direction of writing.

    It has `most` characters at most; longer text ends in an ellipsis.
    """
    read = text[: 8 * most]
    line = " ".join("".join(map(_harmless, read)).split())
    return line if len(line) <= most and len(read) == len(text) else f"{line[: most - 1]}…"


def _harmless(character: str) -> str:
    if character.isspace():
        return " "
    return UNREADABLE if unicodedata.category(character).startswith("C") else character
