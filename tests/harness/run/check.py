"""`check`: an implementation judged in this process, for notebooks and scripts, and the report that it returns."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from attention_conformance.implementations.api.amended import Amendments
from attention_conformance.implementations.worker.remote import end_process
from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import load
from attention_conformance.spec.conventions import Conventions
from attention_conformance.tests.harness.explain.failure_artifacts import Explained, clear, write
from attention_conformance.tests.harness.judge.judging import judged
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.judge.tiers import seeded
from attention_conformance.tests.harness.run.arguments import Arguments, Names, Target, arguments, names
from attention_conformance.tests.harness.run.parametrize import NO_CONVENTIONS
from attention_conformance.tests.harness.run.plan.selection import hushed
from attention_conformance.tests.harness.run.post_run import (
    bad_ends,
    record_diagnoses,
    record_failures,
    record_observations,
    unchecked_claims,
)
from attention_conformance.tests.harness.run.run_records import subject_of, suite_of
from attention_conformance.tests.harness.run.screen.command_lines import INSTALLED, checking, options_of
from attention_conformance.tests.report import views
from attention_conformance.tests.report.counts import HELD, Conformance, conformance
from attention_conformance.tests.report.folder import claim
from attention_conformance.tests.report.log import FILE, encode
from attention_conformance.tests.report.model import Run
from attention_conformance.tests.report.recorder import Recorder
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.report.views import notebook, terminal

__all__ = ["ClauseFailure", "Conformance", "Report", "check"]


@dataclass(frozen=True)
class ClauseFailure:
    """A clause that does not hold in one dtype.

    Attributes:
        level: MUST, SHOULD or MAY; only a MUST changes the verdict.
        message: what differs on the case that shows it most plainly.
        case: that case in words, such as `B=2 H=3 Lq=5 Lk=7 d_k=4 d_v=3 causal=True`.
        failed, checks: how many of the checks of this clause fail.
    """

    clause: str
    dtype: str
    level: str
    message: str
    case: str
    failed: int
    checks: int


@dataclass(frozen=True, eq=False)
class Report:
    """The result of `check`. `str(report)` is the summary of a terminal; a notebook shows a table.

    Attributes:
        verdict: on the implementation as a whole.
        failures: every clause and dtype that does not hold, in the order of the specification.
        diagnosis: the mistake that explains the failures, in words; empty where none is known.
        verdicts: of every clause and dtype that is claimed.
        notes: claims that were not checked, and expected failures that have expired.
        run: the records that views are made from.
    """

    verdict: Conformance
    failures: tuple[ClauseFailure, ...]
    diagnosis: str
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]
    run: Run
    _recorder: Recorder
    _explained: tuple[Explained, ...]

    def __str__(self) -> str:
        return "\n".join([*terminal.lines(self.run), *self.notes])

    def __repr__(self) -> str:
        return f"<Report: {self.verdict}, {len(self.failures)} failures in {len(self.verdicts)} verdicts>"

    def _repr_html_(self) -> str:
        return notebook.text(self.run, str(self.verdict))

    def write(self, folder: str | Path) -> Path:
        """Writes all views, the log of the run and the files of failures into a folder, which is made if need be.

        Returns:
            The page of the report.

        Raises:
            FolderError: the folder cannot be made, or another run writes into it.
            OSError: a file cannot be written.
        """
        place = Path(folder)
        with closing(claim(place)):
            views.clear(place)
            clear(place)
            log = "".join(f"{encode(event)}\n" for event in self._recorder.events)
            (place / FILE).write_text(log, encoding="utf-8")
            for made in self._explained:
                write(made, place)
            views.write(self.run, place)
        return place / "report.html"


def check(
    target: Target,
    *,
    clauses: Names = (),
    dtypes: Names = (),
    tier: str = "quick",
    device: str = "cpu",
    conventions: Mapping[str, str] | Conventions = NO_CONVENTIONS,
    deadline: float | None = None,
    memory: str | int | None = None,
    premises: Names = (),
    claim: Names = (),
    without: Names = (),
    fresh: bool = False,
    seed: int | None = None,
) -> Report:
    """Judges an implementation, and explains its failures. What the implementation prints meanwhile is dropped.

        report = check("my_attention.py:attention", dtypes="float32")
        assert report.verdict == "conforms", str(report)

    Args:
        target: FILE.py:NAME or package.module:NAME, an `Implementation`, a function of query, key and value with axes
            (B, H, L, d), or a class of torch modules. Claims of functions and classes are read from their parameters.
        clauses: ids or patterns such as "masks.*"; none stands for all.
        dtypes: such as "float32"; none stands for all that are claimed.
        tier: how much is checked: "quick", "full" or "exhaustive".
        device: the torch device that the implementation computes on.
        conventions: by key, such as {"empty-row": "nan"}, as the option --convention takes them.
        deadline: seconds for a small call of a target that is given as a string; None: 60.
        memory: what such a target may allocate, such as "8G" or a number of bytes; None: half of what is free.
        premises: what it always does, such as "causal" or "softcap=30", as the option --premise takes them.
        claim: features that are claimed in addition, such as "float-mask".
        without: features that are not claimed.
        fresh: whether the numbers of all cases are drawn anew, as "full" and "exhaustive" always do.
        seed: draws them as the run that reported this seed did; 0: as stored.

    Raises:
        TypeError: an argument is of a type that cannot be used.
        ValueError: a name that selects nothing, a device that is not there, a target that cannot be used.
    """
    amendments = Amendments(names("claim", claim), names("without", without), names("premises", premises))
    given = arguments(
        target, clauses, dtypes, seeded(tier, fresh, seed), device, conventions, deadline, memory, amendments
    )
    recorder = _recorder(given)
    with hushed():
        for each in sorted(given.selection.plan(), key=lambda planned: planned.test.last):
            recorder.add(judged(each.clause, each.test, given.settings.judge(each.implementation, each.dtype)))
        for end in list(bad_ends(given.selection.implementations, recorder.verdicts, given.settings)):
            recorder.add(end)
        recorder.planned = len(recorder.verdicts)
        recorder.judged()
        artifacts = tuple(_explain(given, recorder))
        end_process(given.implementation)
    recorder.close()
    unchecked = tuple(unchecked_claims(given.selection, recorder.verdicts))
    return Report(
        verdict=_verdict(recorder.verdicts, unchecked, bool(given.implementation.findings)),
        failures=tuple(_failures(recorder.verdicts)),
        diagnosis=recorder.run.diagnoses.get(given.implementation.name, ""),
        verdicts=tuple(recorder.verdicts),
        notes=(*unchecked, *given.notes),
        run=recorder.run,
        _recorder=recorder,
        _explained=artifacts if given.settings.candidates else (),
    )


def _recorder(given: Arguments) -> Recorder:
    settings = given.settings
    suite = suite_of(settings)
    recorder = Recorder([subject_of(given.implementation, "".join(settings.candidates), True)], suite)
    recorder.begin()
    return recorder


def _explain(given: Arguments, recorder: Recorder) -> Iterator[Explained]:
    """Records the diagnosis, the failures with their smallest cases, and the observed conventions."""
    settings, implementations = given.settings, given.selection.implementations
    record_diagnoses(recorder, implementations, settings.device)
    command, replayable = partial(_command, settings), bool(settings.candidates)
    yield from record_failures(recorder, implementations, replace(settings, report=Path()), command, replayable)
    if recorder.verdicts and not settings.clauses:
        record_observations(recorder, implementations, settings, weights=True)


def _command(settings: RunSettings, implementation: str, clause: str, dtype: str) -> str:
    """The command that runs one clause again; empty where the target has no name on a command line."""
    if not settings.candidates:
        return ""
    return checking(
        settings.candidates, implementation, options_of(settings, ("--clause", clause, "--dtype", dtype)), INSTALLED
    )


def _verdict(verdicts: list[Verdict], unchecked: tuple[str, ...], findings: bool) -> Conformance:
    verdict = conformance(verdicts, complete=True, findings=findings)
    return Conformance.ERROR if unchecked and verdict in HELD else verdict


def _failures(verdicts: list[Verdict]) -> Iterator[ClauseFailure]:
    order = list(load())
    for v in sorted(verdicts, key=lambda verdict: order.index(verdict.clause)):
        if v.status is Status.FAIL and v.failure is not None:
            case = str(Case.from_json(v.failure.case))
            yield ClauseFailure(v.clause, v.dtype, v.level, v.failure.message, case, v.failed, v.checks)
