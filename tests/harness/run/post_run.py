"""Post-run: what follows when all verdicts are known: diagnoses, smaller cases, and observed conventions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.worker.limits import ENDING
from attention_conformance.implementations.worker.output import shortened
from attention_conformance.implementations.worker.own_builtins import located_line
from attention_conformance.implementations.worker.process import how_ended
from attention_conformance.implementations.worker.remote import Remote
from attention_conformance.spec.clauses import load
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.explain.diagnosis.diagnosed import Diagnosis, failing_checks
from attention_conformance.tests.harness.explain.diagnosis.diagnosis import diagnose
from attention_conformance.tests.harness.explain.failure_artifacts import FOLDER, Explained, explained
from attention_conformance.tests.harness.explain.reduction import lines
from attention_conformance.tests.harness.judge.clause_tests import Selection, claimed, clause_tests, dtypes_of
from attention_conformance.tests.harness.judge.judging import ENDING_CLAUSE, assert_ended_well, verdict
from attention_conformance.tests.harness.judge.observed_conventions import DISAGREEMENTS, observations
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.run_records import failure_record, weight_map
from attention_conformance.tests.harness.run.screen.command_lines import replaying
from attention_conformance.tests.harness.run.session import FirstDiagnosis
from attention_conformance.tests.report.model import DiagnosisRecord, ObservationRecord
from attention_conformance.tests.report.recorder import Recorder
from attention_conformance.tests.report.verdict import LOSSES, Status, Verdict


def leftovers(implementations: Sequence[Implementation]) -> Iterator[str]:
    """Ends the processes of candidates; a line for each candidate that has left others or threads, or ends badly."""
    for implementation in implementations:
        if isinstance(implementation.run, Remote):
            code, door = implementation.run.close(), implementation.run.door
            threads = list(dict.fromkeys(door.threads))
            processes = [shortened(each.command) for each in door.left]
            for kind, left in (("process", processes), ("thread", threads)):
                if left:
                    yield f"{implementation.name} left {_counted(left, kind)} running: {', '.join(left[:3])}; ended"
            if door.never_ended and not threads:
                yield f"{implementation.name} did not end by itself within {ENDING:g} s of its last call; ended"
            if code:
                yield f"{implementation.name} {how_ended(code)}, after its last call"


def bad_ends(
    implementations: Sequence[Implementation], verdicts: Sequence[Verdict], settings: RunSettings
) -> Iterator[Verdict]:
    """Ends the processes of candidates; a verdict on each bad end, where the clause that looks at it was not selected.

    Of a shard, another one looks at it.
    """
    for implementation in implementations:
        own = [v for v in verdicts if v.implementation == implementation.name]
        if own and not settings.shard and not any(v.clause == ENDING_CLAUSE for v in own):
            judge = settings.judge(implementation, own[-1].dtype)
            assert_ended_well(judge)
            if judge.tally.failures:
                yield verdict(load()[ENDING_CLAUSE], judge, 0.0)


def _counted(left: Sequence[str], kind: str) -> str:
    plural = "es" if kind.endswith("s") else "s"
    return f"1 {kind}" if len(left) == 1 else f"{len(left)} {kind}{plural}"


def record_diagnoses(
    recorder: Recorder,
    implementations: Sequence[Implementation],
    device: str,
    adapter_mistakes: Mapping[str, tuple[str, ...]] | None = None,
    diagnosed: FirstDiagnosis | None = None,
) -> dict[str, Diagnosis]:
    """Records what explains the failures of each implementation: mistakes of its adapter, or a known defect.

    Returns:
        The diagnoses, by implementation.
    """
    made: dict[str, Diagnosis] = {}
    for implementation in implementations:
        own = [v for v in recorder.verdicts if v.implementation == implementation.name]
        dtypes = list(dict.fromkeys(v.dtype for v in own))
        checks = failing_checks(own)
        mistakes, raised = (adapter_mistakes or {}).get(implementation.name, ()), ""
        if mistakes:  # where the form of the inputs is wrong, a name that fits the answers does so by chance
            diagnosis = None
        elif diagnosed is not None and (diagnosed.checks, diagnosed.dtypes) == (
            checks,
            dtypes,
        ):  # of the only candidate
            diagnosis = diagnosed.diagnosis
        else:
            diagnosis, raised = attempted(partial(diagnose, implementation, checks, device, dtypes))
        lost = [v.failure.message for v in own if v.failure is not None and v.failure.kind in LOSSES]
        if texts := [*lost[:1], *mistakes, *([str(diagnosis)] if diagnosis else []), *([raised] if raised else [])]:
            recorder.add(DiagnosisRecord(implementation.name, "; ".join(texts)))
        if diagnosis is not None:
            made[implementation.name] = diagnosis
    return made


def attempted(find: Callable[[], Diagnosis | None]) -> tuple[Diagnosis | None, str]:
    """A diagnosis; or, where the suite itself raises, why there is none: the verdicts are complete without it."""
    try:
        with np.errstate(all="ignore"):  # the formula of another mistake may overflow where the right one does not
            return find(), ""
    except Exception as error:
        why = located_line(error)
        return None, f"no diagnosis: looking for it raised {why}, a mistake of the suite: please report it"


def record_failures(
    recorder: Recorder,
    implementations: Sequence[Implementation],
    settings: RunSettings,
    command: Callable[[str, str, str], str],
    replayable: bool = True,
    telling: Mapping[str, tuple[str, ...]] | None = None,
) -> Iterator[Explained]:
    """Every failure with its artifacts, recorded with its numbers where there is a report.

    `command` makes the command line that runs a failure again, from implementation, clause and dtype; `replayable` is
    False where no failure file can be written; `telling` are clauses whose failures come first, by implementation.
    """
    by_name = {i.name: i for i in implementations}
    for artifacts in explained(implementations, recorder.verdicts, settings, recorder.targets, telling or {}):
        if settings.report is not None:
            name, file = artifacts.verdict.implementation, artifacts.file
            place = settings if replayable else replace(settings, report=None)
            recorder.add(failure_record(artifacts, by_name[name], place, command(name, file.clause, file.dtype)))
        yield artifacts


def record_observations(
    recorder: Recorder, implementations: Sequence[Implementation], settings: RunSettings, weights: bool
) -> None:
    """Records the answers of each implementation where the field disagrees, and with `weights` its weights."""
    for implementation in implementations:
        answers = observations(implementation, DISAGREEMENTS, settings.dtypes, settings.device)
        recorder.add(ObservationRecord(implementation.name, answers))
        if weights:
            recorder.add(weight_map(implementation, settings.device))


def failure_lines(artifacts: Explained, settings: RunSettings, with_numbers: bool) -> Iterator[str]:
    """The lines below a failure; `with_numbers` gives the smallest case, and without a report the script."""
    if with_numbers and artifacts.counterexample is not None:
        yield from lines(artifacts.counterexample)
    elif with_numbers:
        yield f"not reduced: {artifacts.without}"
    if settings.report is not None:
        path = settings.report / FOLDER / artifacts.file.name
        yield f"replay: {replaying(path.with_name(f'{path.name}.json'), settings, artifacts.file.command)}"
        yield f"script: python {path}.py" if artifacts.script else f"no script: {artifacts.without}"
    elif with_numbers and artifacts.script:
        yield from (
            "script that shows it without this suite:",
            *(f"  {line}" for line in artifacts.script.splitlines()),
        )
    elif with_numbers:
        yield f"no script: {artifacts.without}; --report DIR writes a file for --replay"


def unchecked_claims(selection: Selection, verdicts: Sequence[Verdict], shard: str = "") -> list[str]:
    """Claimed features without a counted check; only a whole run of all clauses can find them."""
    if shard or selection.clauses or selection.dtypes or not verdicts:
        return []
    unchecked = []
    for implementation in selection.implementations:
        own = [v for v in verdicts if v.implementation == implementation.name]
        called = {name for name in clause_tests() if not claimed(load()[name], implementation.claims)}
        if called - {v.clause for v in own}:
            continue  # only a part of the tests was run
        settled = (v.clause for v in own if v.checks or v.status is Status.NOT_PROVABLE)
        checked: set[Feature] = {feature for clause in settled for feature in load()[clause].features}
        lost = sorted(_testable(implementation.claims) - checked)
        unchecked += [f"{implementation.name} claims {feature}, and nothing was checked of it" for feature in lost]
    return unchecked


def _testable(claims: Claims) -> frozenset[Feature]:
    """The claimed features that have a test in one of the claimed dtypes."""
    tests = (test for test in clause_tests().values() if dtypes_of(test, claims))
    return claims.features & {feature for test in tests for feature in load()[test.clause].features}
