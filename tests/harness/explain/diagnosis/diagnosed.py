"""Diagnosed: the failing checks that a diagnosis starts from, and what it finds of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import Level
from attention_conformance.tests.harness.explain.diagnosis.naming import (
    Explanation,
)
from attention_conformance.tests.report.verdict import LOSSES, Status, Verdict


@dataclass(frozen=True)
class FailingCheck:
    """A failing check: its clause, case and dtype, and what differed there; no part where it was no comparison."""

    clause: str
    case: Case
    dtype: str
    part: str


@dataclass(frozen=True)
class Diagnosis:
    """The explanation of all failures, or what is known of them.

    Attributes:
        name: the id of a defect, a convention or a cause; empty if nothing known explains the failures.
        second: others that are made at the same time.
        explains, of: how many failing cases are explained, out of how many that were compared; where nothing could be
            compared, kinds of failures.
        agrees: how many passing cases the explanation agrees with.
        repair: what to do.
        when: when it fails, and which elements are wrong then, in words.
        of_clauses: whether kinds of failures were compared, as no answers could be.
        claim: whether the name is a convention under which the failing clauses were judged again, and hold.
        everywhere: whether every case that was compared fails.
        rest: what all failing cases have that are not explained, and no others; empty if there is nothing.
        raises: the exception that every failing case raises, and where.
        options: those of the command under which all that was compared would hold, if it may be intended.
        breaks: the clauses that it breaks, where no defect is named that has them.
        differ: whether a case that fails is right when it is called again.
        explanation: that of the name, where answers were compared.
    """

    name: str
    explains: int
    of: int
    agrees: int = 0
    second: tuple[str, ...] = ()
    repair: str = ""
    when: tuple[str, ...] = ()
    of_clauses: bool = False
    claim: bool = False
    everywhere: bool = False
    rest: str = ""
    raises: str = ""
    options: tuple[str, ...] = ()
    breaks: tuple[str, ...] = ()
    differ: bool = False
    explanation: Explanation | None = field(default=None, compare=False)

    @property
    def pattern(self) -> str:
        """When it fails, in one clause of a sentence."""
        if self.of_clauses:
            return f"what fails: {'; '.join(self.when)}" if self.when else "none showed when the checks were run again"
        if self.everywhere:
            return "every case that was compared fails"
        return f"it fails only {', and only '.join(self.when)}" if self.when else "no pattern was found in the failures"

    @property
    def telling(self) -> tuple[str, ...]:
        """The clauses that the named defect breaks: their failures show it most plainly."""
        defect = self.explanation.hypotheses[0].defect if self.explanation is not None else None
        return defect.clauses if defect is not None else self.breaks

    def __str__(self) -> str:
        if self.differ:
            return f"equal calls differ: the same case fails at one call and is right at another: {self.repair}"
        if self.raises and not self.name:
            return f"{self.raises}; {self.pattern}"
        if not self.name:
            return f"no known mistake explains the failures; {self.pattern}"
        if self.claim:
            return f"holds under `{self.name}` where it fails: {self.repair}"
        if self.of_clauses:
            return f"fails as `{self.name}` does, in {self.explains} of {self.of} kinds of failures: {self.repair}"
        names = f"`{self.name}`" + "".join(f" and `{name}`" for name in self.second)
        agreed = f" and {self.agrees} passing ones" if self.agrees else ""
        when = (f"; {self.pattern}" if self.when else "") + (f"; the others all have {self.rest}" if self.rest else "")
        return f"matches {names} on {self.explains} of {self.of} failing cases{agreed}{when}: {self.repair}"


def failing_checks(verdicts: Sequence[Verdict]) -> list[FailingCheck]:
    """The check that each verdict shows, of clauses that MUST hold; of the others if those all hold."""
    failing = [(v, v.failure) for v in verdicts if v.status is Status.FAIL and v.failure is not None]
    failing = [(v, failure) for v, failure in failing if failure.kind not in LOSSES]
    binding = [pair for pair in failing if pair[0].level == Level.MUST] or failing
    return [FailingCheck(v.clause, Case.from_json(f.case), v.dtype, f.part) for v, f in binding]
