"""Findings: the results of probes, as plain text, so that they cross from the child process unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attention_conformance.spec.conventions import Polarity

OFFERED, ABSENT, IGNORED = "offered", "not offered", "ignored"
ALWAYS = "always"
"""What is done whatever a call states."""
UNDETERMINED, LOST = "undetermined", "no answer"
UNKNOWN, NOT_RETURNED = "no such parameter", "not returned with the output"
REASONS = (UNKNOWN, IGNORED, NOT_RETURNED)
MAY_ATTEND, MASKED_OUT = str(Polarity.MAY_ATTEND), str(Polarity.MASKED_OUT)


@dataclass(frozen=True)
class Finding:
    """One result.

    Attributes:
        topic: what was probed: the name of a feature or of a convention, or other words.
        answer: `UNDETERMINED` where no known answer fits, `LOST` where the process did not survive the probe.
        evidence: what was observed, or why there is no answer.
        idle: whether there is a parameter for it, and it changes nothing.
    """

    topic: str
    answer: str
    evidence: str = ""
    idle: bool = False

    @property
    def determined(self) -> bool:
        """Whether one known answer fits, and no other."""
        return self.answer not in (UNDETERMINED, LOST)

    @classmethod
    def undetermined(cls, topic: str, why: str) -> Finding:
        """A topic without an answer."""
        return cls(topic, UNDETERMINED, why)

    @classmethod
    def refused(cls, topic: str, error: str) -> Finding:
        """Something that is not offered, because it raised an error."""
        return cls(topic, ABSENT, f"refused: {error}")

    @classmethod
    def ignored(cls, topic: str, evidence: str = "") -> Finding:
        """Something that is not offered, because it changes nothing."""
        return cls(topic, ABSENT, f"{IGNORED}: {evidence}" if evidence else IGNORED, idle=True)

    @classmethod
    def offered(cls, topic: str, right: bool, evidence: str) -> Finding:
        """Something that is offered, or does something unknown."""
        return cls(topic, OFFERED if right else UNDETERMINED, evidence)

    @classmethod
    def the_one(cls, topic: str, fits: Iterable[str], evidence: str) -> Finding:
        """The one answer that fits; undetermined where none or several do."""
        answers = list(fits)
        return cls(topic, answers[0] if len(answers) == 1 else UNDETERMINED, evidence)


@dataclass(frozen=True)
class Facts:
    """The findings so far, by topic."""

    findings: Mapping[str, Finding]

    @classmethod
    def of(cls, findings: Iterable[Finding]) -> Facts:
        """These findings; the last one counts where a topic has several."""
        return cls({finding.topic: finding for finding in findings})

    def answer(self, topic: str) -> str:
        """The answer, or nothing where there is none."""
        finding = self.findings.get(topic)
        return finding.answer if finding is not None and finding.determined else ""

    def polarity(self, topic: str) -> str:
        """What True means in a boolean mask, or nothing where it is neither of the two."""
        return self.answer(topic) if self.answer(topic) in (MAY_ATTEND, MASKED_OUT) else ""

    def evidence(self, topic: str) -> str:
        """What was observed, or nothing where it was not probed."""
        finding = self.findings.get(topic)
        return "" if finding is None else finding.evidence


def table(findings: Iterable[Finding]) -> str:
    """The findings in three columns, the last one unbounded; what is not offered comes last, together."""
    every = list(findings)
    absent = [f for f in every if f.answer == ABSENT]
    listed = [f for f in every if f.answer != ABSENT] + [f for f in absent if not _plain_reason(f)]
    rows = [("finding", "answer", "evidence"), *((f.topic, f.answer, f.evidence) for f in listed)]
    for reason in REASONS:
        if together := [f.topic for f in absent if _plain_reason(f) == reason]:
            rows.append((ABSENT, reason, ", ".join(together)))
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{a:{first}}  {b:{second}}  {c}".rstrip() for a, b, c in rows)


def _plain_reason(finding: Finding) -> str:
    """Why something is not offered, where that needs no evidence of its own."""
    if finding.evidence in (IGNORED, NOT_RETURNED):
        return finding.evidence
    return UNKNOWN if "unexpected keyword argument" in finding.evidence else ""
