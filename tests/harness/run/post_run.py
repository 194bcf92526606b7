"""Finishing: what is found out when all verdicts are in: diagnoses, smaller cases, and what else was seen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from attention_conformance.spec.clauses import load
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.explain.diagnosis import diagnose, failing_checks
from attention_conformance.tests.harness.judge.clause_tests import Selection, claimed, clause_marks
from attention_conformance.tests.harness.run.failure_artifacts import Setting, explained, told, write
from attention_conformance.tests.harness.run.failure_numbers import failure_record, weight_map
from attention_conformance.tests.harness.run.next_steps import again_of
from attention_conformance.tests.harness.run.observed_conventions import QUESTIONS, observations
from attention_conformance.tests.harness.run.selection import settings_of
from attention_conformance.tests.harness.run.session import KEY, PROPERTY, Plugin
from attention_conformance.tests.report.model import DiagnosisRecord, ObservationRecord
from attention_conformance.tests.report.verdict import Verdict


def finish(config: pytest.Config, status: int) -> None:
    """Adds to the records, and to the failures that the terminal is about to show, what the exit status calls for."""
    plugin = config.stash[KEY]
    if status == pytest.ExitCode.TESTS_FAILED:
        _diagnose(plugin)
        _explain(config)
    if status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        _observe(plugin)


def _diagnose(plugin: Plugin) -> None:
    """After all verdicts are written down: nothing is lost if a candidate takes the process down here."""
    for implementation in plugin.selection.implementations:
        mine = [v for v in plugin.recorder.verdicts if v.implementation == implementation.name]
        dtypes = list(dict.fromkeys(v.dtype for v in mine))
        found = diagnose(implementation, failing_checks(mine), plugin.options.device, dtypes)
        if told := [*plugin.handed.get(implementation.name, ()), *([str(found)] if found else [])]:
            plugin.recorder.add(DiagnosisRecord(implementation.name, "; ".join(told)))


def _observe(plugin: Plugin) -> None:
    """What is not claimed is observed, where somebody is going to read it: of candidates, and in reports."""
    options, selection = plugin.options, plugin.selection
    if not plugin.recorder.verdicts or selection.clauses or not (options.candidates or options.report):
        return
    for implementation in selection.implementations:
        seen = observations(implementation, QUESTIONS, selection.dtypes, options.device)
        plugin.recorder.add(ObservationRecord(implementation.name, seen))
        if options.report is not None:
            plugin.recorder.add(weight_map(implementation, options.device))


def _explain(config: pytest.Config) -> None:
    """Adds to the failures that the terminal is about to show; done here, where all verdicts are known."""
    plugin, reports = config.stash[KEY], _failed_reports(config)
    setting, numbers = _setting(plugin), set[str]()
    implementations = {i.name: i for i in plugin.selection.implementations}
    for made in explained(plugin.selection.implementations, plugin.recorder.verdicts, setting):
        verdict = made.verdict
        first = verdict.implementation not in numbers
        if made.found is not None:
            numbers.add(verdict.implementation)
        if setting.report is not None:
            write(made, setting.report)
            again = again_of(plugin.options, setting.targets, verdict.implementation, verdict.clause, verdict.dtype)
            plugin.recorder.add(failure_record(made, implementations[verdict.implementation], setting, again))
        report = reports.get((verdict.clause, verdict.implementation, verdict.dtype))
        if report is not None:
            text = (f"  {line}" for line in told(made, setting.report, first))
            report.longrepr = "\n".join([str(report.longrepr), *text])


def _failed_reports(config: pytest.Config) -> dict[tuple[str, str, str], pytest.TestReport]:
    """The reports of failed items that the terminal holds, by clause, implementation and dtype."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    found = {}
    for report in [] if terminal is None else terminal.stats.get("failed", []):
        for name, value in report.user_properties:
            if name == PROPERTY:
                verdict = Verdict.from_json(str(value))
                found[verdict.clause, verdict.implementation, verdict.dtype] = report
    return found


def _setting(plugin: Plugin) -> Setting:
    options = plugin.options
    return Setting(
        targets=plugin.recorder.targets,
        conventions=settings_of(options),
        device=options.device,
        tier=options.tier,
        report=options.report,
    )


def unchecked_claims(selection: Selection, verdicts: Sequence[Verdict]) -> list[str]:
    """Claimed features that no counted check of the run spoke of; only a run of all clauses can say so."""
    if selection.clauses or selection.dtypes or not verdicts:
        return []
    speaking = {f for c in load().values() if c.id in clause_marks() for f in c.features}
    found = []
    for implementation in selection.implementations:
        heard = [v for v in verdicts if v.implementation == implementation.name]
        called = {c for c in clause_marks() if not claimed(load()[c], implementation.claims)}
        if called - {v.clause for v in heard}:
            continue  # only a part of the tests was run
        mine = [v for v in heard if v.checks]
        spoken_of: set[Feature] = {f for v in mine for f in load()[v.clause].features}
        lost = sorted(speaking & implementation.claims.features - spoken_of)
        found += [f"{implementation.name} claims {feature}, and nothing was checked of it" for feature in lost]
    return found
