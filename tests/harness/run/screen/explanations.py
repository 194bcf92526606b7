"""Explanations: what a pytest session adds to its failures before the terminal shows them."""

from collections.abc import Mapping
from functools import partial

import pytest

from attention_conformance.tests.harness.explain.failure_artifacts import Explained, write
from attention_conformance.tests.harness.run import post_run
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.screen.command_lines import again
from attention_conformance.tests.harness.run.session import KEY, PROPERTY
from attention_conformance.tests.report.log import decode
from attention_conformance.tests.report.verdict import Verdict


def explain(config: pytest.Config, status: int) -> None:
    """Diagnoses, artifacts of failures and observations, as far as the exit status and the options call for them."""
    state = config.stash[KEY]
    settings, recorder = state.settings, state.recorder
    if status == ExitStatus.FAILS:
        implementations = state.selection.implementations
        diagnoses = post_run.record_diagnoses(
            recorder, implementations, settings.device, state.adapter_mistakes, state.diagnosed
        )
        state.intended |= {name: each.options for name, each in diagnoses.items() if each.options}
        telling = {name: each.telling for name, each in diagnoses.items()}
        _explain_failures(config, telling)
    if status not in (ExitStatus.CONFORMS, ExitStatus.FAILS) or settings.clauses or not recorder.verdicts:
        return
    shown = settings.has_candidates and not settings.first_screen
    if shown or settings.report:
        post_run.record_observations(recorder, state.selection.implementations, settings, settings.report is not None)


def _explain_failures(config: pytest.Config, telling: Mapping[str, tuple[str, ...]]) -> None:
    """Adds to the failures that the terminal is about to show; done here, where all verdicts are known."""
    state, reports = config.stash[KEY], _failed_reports(config)
    reduced = set[str]()
    command = partial(again, state.settings, state.recorder.targets)
    implementations = state.selection.implementations
    for artifacts in post_run.record_failures(
        state.recorder, implementations, state.settings, command, telling=telling
    ):
        verdict = artifacts.verdict
        first = verdict.implementation not in reduced
        if state.shown is None or _shows_more(artifacts, state.shown):
            state.shown = artifacts
        if artifacts.counterexample is not None:
            reduced.add(verdict.implementation)
        if state.settings.report is not None:
            write(artifacts, state.settings.report)
        report = reports.get((verdict.clause, verdict.implementation, verdict.dtype))
        if report is not None:
            text = (f"  {line}" for line in post_run.failure_lines(artifacts, state.settings, first))
            report.longrepr = "\n".join([str(report.longrepr), *text])


def _shows_more(artifacts: Explained, shown: Explained) -> bool:
    """Whether it has a smallest case where the failure that is shown has none; advice never stands for what fails."""
    advice = artifacts.verdict.level != shown.verdict.level
    return shown.counterexample is None and artifacts.counterexample is not None and not advice


def _failed_reports(config: pytest.Config) -> dict[tuple[str, str, str], pytest.TestReport]:
    """The reports of failed items that the terminal holds, by clause, implementation and dtype."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    reports = {}
    for report in [] if terminal is None else terminal.stats.get("failed", []):
        for verdict in (decode(str(value)) for name, value in report.user_properties if name == PROPERTY):
            if isinstance(verdict, Verdict):
                reports[verdict.clause, verdict.implementation, verdict.dtype] = report
    return reports
