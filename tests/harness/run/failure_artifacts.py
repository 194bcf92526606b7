"""Failing: what a run does for its failures at its end: smaller cases, scripts and files to replay, in little time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import Level, load
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.explain.counterexample import lines
from attention_conformance.tests.harness.explain.reduction import Counterexample, reduce
from attention_conformance.tests.harness.explain.replay import FailureFile
from attention_conformance.tests.harness.explain.script import NoScriptError, script
from attention_conformance.tests.harness.judge.judge import TIERS, Judge
from attention_conformance.tests.harness.run.command_lines import replaying
from attention_conformance.tests.report.verdict import Status, Verdict

SECONDS = 4.0
"""For all failures of a run together."""
FIRST = 0.5
"""The share of it that the first failing clause of an implementation may take, where others follow."""
FOLDER = "failures"


@dataclass(frozen=True, eq=False)
class Explained:
    """A failure, and what was made of it.

    Attributes:
        found: the smallest failing case, if the failure could be reduced in the time there was.
        script: the program that shows it; `without` says why there is none.
    """

    verdict: Verdict
    file: FailureFile
    found: Counterexample | None
    script: str
    without: str


@dataclass(frozen=True)
class Setting:
    """How a run was asked: what a failure file has to repeat.

    Attributes:
        targets: of the candidates, by the names of their implementations.
        report: the folder of the report, if there is one.
    """

    targets: Mapping[str, str]
    conventions: Mapping[str, str]
    device: str
    tier: str
    report: Path | None


def explained(
    implementations: Sequence[Implementation], verdicts: Sequence[Verdict], setting: Setting
) -> Iterator[Explained]:
    """Every failure of the run with a report, the first of each implementation without, the plainest first."""
    failing = [(i, mine) for i in implementations if (mine := _of(i, verdicts))]
    for implementation, mine in failing:
        until = time.perf_counter() + SECONDS / len(failing)
        reduced = False
        for number, verdict in enumerate(mine):
            left = until - time.perf_counter()
            wanted = not reduced or setting.report is not None
            if wanted or number == 0:
                share = left if reduced or setting.report is None else left * FIRST
                made = _explained(implementation, verdict, setting, share)
                reduced = reduced or made.found is not None
                yield made


def _of(implementation: Implementation, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Its failures: what MUST hold first, in the order of the specification, in wide dtypes first."""
    order, dtypes = list(load()), list(DTYPES)
    mine = [v for v in verdicts if v.implementation == implementation.name and v.status is Status.FAIL]
    return sorted(mine, key=lambda v: (v.level != Level.MUST, order.index(v.clause), dtypes.index(v.dtype)))


def _explained(implementation: Implementation, verdict: Verdict, setting: Setting, seconds: float) -> Explained:
    failure = verdict.failure
    assert failure is not None
    case = Case.from_json(failure.case)
    judge = Judge(implementation, failure.dtype, setting.device, TIERS[setting.tier])
    found = reduce(judge, case, failure.part, seconds) if failure.part and seconds > 0 else None
    target = setting.targets.get(implementation.name, "")
    file = FailureFile(
        implementation=implementation.name,
        clause=verdict.clause,
        dtype=failure.dtype,
        case=case,
        message=failure.message,
        target=target,
        conventions=setting.conventions,
        device=setting.device,
        tier=setting.tier,
        part=failure.part,
    )
    if found is None:
        return Explained(verdict, file, None, "", _unreduced(failure.part, seconds))
    recipe, kind = found.recipe, str(found.outcome.comparison.kind)
    file = replace(file, case=recipe.case, decimals=recipe.decimals, cotangent=recipe.cotangent, kind=kind)
    try:
        return Explained(verdict, file, found, script(found, judge, target, setting.conventions, verdict.clause), "")
    except NoScriptError as error:
        return Explained(verdict, file, found, "", str(error))


def _unreduced(part: str, seconds: float) -> str:
    if not part:
        return "the check is no comparison of one answer with the reference"
    return "the case does not fail when asked alone" if seconds > 0 else "other failures took the time"


def clear(report: Path) -> None:
    """Removes the failure files of an earlier run."""
    for path in [*(report / FOLDER).glob("*--*--*.json"), *(report / FOLDER).glob("*--*--*.py")]:
        path.unlink()


def write(made: Explained, report: Path) -> None:
    """Writes the failure file, and the script beside it."""
    folder = report / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{made.file.name}.json").write_text(made.file.to_json())
    if made.script:
        (folder / f"{made.file.name}.py").write_text(made.script)


def told(made: Explained, report: Path | None, shown: bool) -> Iterator[str]:
    """The lines below a failure. `shown`: with the numbers, and without a report with the script."""
    if shown and made.found is not None:
        yield from lines(made.found)
    elif shown:
        yield f"not reduced: {made.without}"
    if report is not None:
        path = report / FOLDER / made.file.name
        yield f"replay: {replaying(path.with_name(f'{path.name}.json'))}"
        yield f"script: python {path}.py" if made.script else f"no script: {made.without}"
    elif shown and made.script:
        yield from ("script that shows it without this suite:", *(f"  {line}" for line in made.script.splitlines()))
    elif shown:
        yield f"no script: {made.without}; --report DIR writes a file for --replay"
