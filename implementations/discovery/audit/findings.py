"""Findings: what a probe has shown, as plain text, so that it crosses from the child process as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

OFFERED, ABSENT, IGNORED = "offered", "not offered", "ignored"
UNDETERMINED, LOST = "undetermined", "no answer"


@dataclass(frozen=True)
class Finding:
    """One answer.

    Attributes:
        question: what was asked, "causal alignment".
        answer: `UNDETERMINED` where no known answer fits, `LOST` where the process did not bear the question.
        evidence: what was seen, or why nothing could be told.
    """

    question: str
    answer: str
    evidence: str = ""

    @property
    def determined(self) -> bool:
        """Whether one known answer fits, and no other."""
        return self.answer not in (UNDETERMINED, LOST)


def undetermined(question: str, why: str) -> Finding:
    """A question without an answer."""
    return Finding(question, UNDETERMINED, why)


@dataclass(frozen=True)
class Facts:
    """The findings so far, by question."""

    found: Mapping[str, Finding]

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Facts:
        """These findings; the last one counts where a question was asked twice."""
        return cls({finding.question: finding for finding in findings})

    def answer(self, question: str) -> str:
        """The answer, or nothing where there is none."""
        finding = self.found.get(question)
        return finding.answer if finding is not None and finding.determined else ""

    def absent(self, question: str) -> bool:
        """Whether it was found not to be there."""
        return self.answer(question) == ABSENT

    def evidence(self, question: str) -> str:
        """What was seen, or nothing where it was not asked."""
        finding = self.found.get(question)
        return "" if finding is None else finding.evidence


def table(findings: Iterable[Finding]) -> str:
    """The findings in three columns, the last one unbounded; what is not offered comes last, together."""
    found = list(findings)
    rows = [("finding", "answer", "evidence")]
    rows += [(f.question, f.answer, f.evidence) for f in found if f.answer != ABSENT]
    rows += [(f.question, f.answer, f.evidence) for f in found if f.answer == ABSENT and not _plain_reason(f)]
    for reason in REASONS:
        if together := [f.question for f in found if f.answer == ABSENT and _plain_reason(f) == reason]:
            rows.append((ABSENT, reason, ", ".join(together)))
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{a:{first}}  {b:{second}}  {c}".rstrip() for a, b, c in rows)


UNKNOWN, NOT_RETURNED = "no such parameter", "none came with the output"
REASONS = (UNKNOWN, IGNORED, NOT_RETURNED)


def _plain_reason(finding: Finding) -> str:
    """Why something is not offered, where that needs no evidence of its own."""
    if finding.evidence in (IGNORED, NOT_RETURNED):
        return finding.evidence
    return UNKNOWN if "unexpected keyword argument" in finding.evidence else ""


def spans(numbers: Iterable[Any]) -> str:
    """Numbers as "0..2, 5"; "none" for none."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    told = [str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs]
    return ", ".join(told) or "none"
