"""Failure artifacts: the smallest case, the script and the file to replay of each failure, made at the end of a run."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.worker.remote import started_by
from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import Level, load
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.explain.reduction import Counterexample, reduce
from attention_conformance.tests.harness.explain.replay import FailureFile
from attention_conformance.tests.harness.explain.script import NoScriptError, script
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.report.verdict import LOSSES, FailureKind, Status, Verdict

SECONDS = 4.0
"""For all failures of a run together."""
FIRST = 0.5
"""The part of it that the first failing clause of an implementation may take, where others follow."""
FOLDER = "failures"


@dataclass(frozen=True, eq=False)
class Explained:
    """A failure with its artifacts.

    Attributes:
        counterexample: the smallest failing case, if the failure could be reduced in the available time.
        script: the program that shows it; `without` is the reason where there is none.
    """

    verdict: Verdict
    file: FailureFile
    counterexample: Counterexample | None
    script: str
    without: str


def explained(
    implementations: Sequence[Implementation],
    verdicts: Sequence[Verdict],
    settings: RunSettings,
    targets: Mapping[str, str],
    telling: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Iterator[Explained]:
    """Every failure of a run with a report, the first of each implementation without, the plainest first.

    `targets` are those of the candidates, and `telling` clauses that come first, by the names of their implementations.
    """
    failing = [
        (i, failures) for i in implementations if (failures := _failures_of(i, verdicts, telling.get(i.name, ())))
    ]
    for implementation, failures in failing:
        until = time.perf_counter() + SECONDS / len(failing)
        target, reduced = targets.get(implementation.name, ""), False
        for number, verdict in enumerate(failures):
            left = until - time.perf_counter()
            if number == 0 or not reduced or settings.report is not None:
                seconds = left if reduced or settings.report is None else left * FIRST
                judge = settings.judge(implementation, verdict.dtype)
                artifacts = _explained(judge, verdict, settings, target, seconds)
                reduced = reduced or artifacts.counterexample is not None
                yield artifacts


def _failures_of(implementation: Implementation, verdicts: Sequence[Verdict], telling: Sequence[str]) -> list[Verdict]:
    """Its failures: what MUST hold first, then telling clauses, the order of the specification, wide dtypes."""
    order, dtypes = list(load()), list(DTYPES)
    failing = [v for v in verdicts if v.implementation == implementation.name and v.status is Status.FAIL]
    ranks = {v.clause: (v.level != Level.MUST, v.clause not in telling, order.index(v.clause)) for v in failing}
    return sorted(failing, key=lambda v: (*ranks[v.clause], dtypes.index(v.dtype)))


def _explained(judge: Judge, verdict: Verdict, settings: RunSettings, target: str, seconds: float) -> Explained:
    failure = verdict.failure
    assert failure is not None
    file = FailureFile(
        implementation=verdict.implementation,
        clause=verdict.clause,
        dtype=failure.dtype,
        case=Case.from_json(failure.case),
        message=failure.message,
        target=target,
        command=started_by(judge.implementation),
        python=settings.python if target else "",
        conventions=settings.conventions,
        premises=settings.amendments.premises,
        device=settings.device,
        tier=settings.tier,
        part=failure.part,
    )
    counterexample = reduce(judge, file.case, failure.part, seconds) if failure.part and seconds > 0 else None
    if counterexample is None:
        return Explained(verdict, file, None, "", _unreduced(failure.kind, failure.part, seconds))
    recipe, kind = counterexample.recipe, str(counterexample.outcome.comparison.kind)
    file = replace(file, case=recipe.case, decimals=recipe.decimals, cotangent=recipe.cotangent, kind=kind)
    try:
        return Explained(
            verdict,
            file,
            counterexample,
            script(counterexample, judge, target, settings.conventions, verdict.clause, settings.amendments.premises),
            "",
        )
    except NoScriptError as error:
        return Explained(verdict, file, counterexample, "", str(error))


def _unreduced(kind: FailureKind, part: str, seconds: float) -> str:
    if kind in LOSSES:
        return "each further call would cost a process"
    if not part:
        return "the check is no comparison of one answer with the reference"
    return "the case does not fail when run alone" if seconds > 0 else "other failures took the time"


def clear(report: Path) -> None:
    """Removes the failure files of an earlier run."""
    for path in [*(report / FOLDER).glob("*--*--*.json"), *(report / FOLDER).glob("*--*--*.py")]:
        path.unlink()


def write(artifacts: Explained, report: Path) -> None:
    """Writes the failure file, and the script next to it."""
    folder = report / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{artifacts.file.name}.json").write_text(artifacts.file.to_json())
    if artifacts.script:
        (folder / f"{artifacts.file.name}.py").write_text(artifacts.script)
