"""The pytest side: options, one test item for each clause, implementation and dtype, and the report of the run."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.candidates import distinct
from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import Clause, Level, load
from attention_conformance.tests import conformance
from attention_conformance.tests.cli import options as early
from attention_conformance.tests.harness.explain.replay import absolute
from attention_conformance.tests.harness.judge.clause_tests import ClauseTest, Selection, tests_of
from attention_conformance.tests.harness.judge.judge import TIERS, Judge
from attention_conformance.tests.harness.judge.judging import judged
from attention_conformance.tests.harness.run.expected_failures import proposed
from attention_conformance.tests.harness.run.failure_artifacts import clear
from attention_conformance.tests.harness.run.next_steps import Ending, again_of
from attention_conformance.tests.harness.run.post_run import finish, unchecked_claims
from attention_conformance.tests.harness.run.progress import Progress, colours
from attention_conformance.tests.harness.run.queries import answered
from attention_conformance.tests.harness.run.run_records import subject_of, suite_of
from attention_conformance.tests.harness.run.selection import Options, UsageError, hushed, left_out, selection_of
from attention_conformance.tests.harness.run.session import KEY, PROPERTY, Plugin
from attention_conformance.tests.harness.run.smoke import smoke
from attention_conformance.tests.report.recorder import Recorder
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.report.views import ERRORS
from attention_conformance.tests.report.views.terminal import observed, summary


class DoesNotConformError(Exception):
    """A clause does not hold; the message is all there is to read."""


class ClauseItem(pytest.Function):
    """One clause, asked of one implementation in one dtype."""

    subject: tuple[Clause, ClauseTest, Implementation, str]
    line: int
    """Where the clause stands in the file, counted from 0."""

    def runtest(self) -> None:
        clause, test, implementation, dtype = self.subject
        options = self.config.stash[KEY].options
        judge = Judge(implementation, dtype, options.device, TIERS[options.tier])
        verdict = judged(clause, test, judge)
        self.user_properties.append((PROPERTY, verdict.to_json()))
        conclude(verdict)

    def repr_failure(  # type: ignore[override]  # as pytest.Function has it, one argument less than Node
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> Any:
        if isinstance(excinfo.value, DoesNotConformError):
            clause, _, implementation, dtype = self.subject
            plugin = self.config.stash[KEY]
            again = again_of(plugin.options, plugin.recorder.targets, implementation.name, clause.id, dtype)
            return f"{excinfo.value}\n  again: {again}"
        if isinstance(excinfo.value, pytest.xfail.Exception):
            return str(excinfo.value)  # nobody reads the traceback, and pytest parses source for it
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line, self.name


def conclude(verdict: Verdict) -> None:
    """Turns a verdict into the outcome of a pytest item.

    Raises:
        DoesNotConformError: a MUST does not hold, or the suite could not judge.
    """
    match verdict.status:
        case Status.NOT_CLAIMED:
            pytest.skip(verdict.reason)
        case Status.EXPECTED_FAILURE:
            pytest.xfail(f"{verdict.reason} {verdict.link}")
        case Status.ERROR:
            raise DoesNotConformError(f"{verdict.clause}: {verdict.reason}")
        case Status.FAIL:
            assert verdict.failure is not None
            if verdict.level != Level.MUST:
                pytest.xfail(f"{verdict.level}: {verdict.failure.message}")
            raise DoesNotConformError(_explained(verdict))


def _explained(verdict: Verdict) -> str:
    assert verdict.failure is not None
    clause, case = load()[verdict.clause], Case.from_json(verdict.failure.case)
    return (
        f"{verdict.clause} ({clause.level}): {clause.statement}\n"
        f"  {verdict.implementation} in {verdict.dtype}: {verdict.failure.message}\n"
        f"  {verdict.failed} of {verdict.checks} checks fail; the plainest case: {case}"
    )


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    config = pluginmanager.get_plugin("pytestconfig")
    if not pluginmanager.has_plugin(early.NAME) or not early.on_the_suite(config):
        early.declare(parser)


def pytest_configure(config: pytest.Config) -> None:
    gc.freeze()  # what imports brought stays, and would be looked through once
    options = Options.of(config)
    selection = _selected(options)
    worker = hasattr(config, "workerinput")
    if worker:
        torch.set_num_threads(1)  # the processes share the cores: threads that wait for one another take them from all
    suite = suite_of(options.tier, options.device, options.clauses, options.dtypes)
    folder, targets = None if worker else options.report, targets_of(options, selection)
    subjects = [subject_of(i, targets.get(i.name, "")) for i in selection.implementations]
    recorder = Recorder(subjects, suite, folder)
    config.stash[KEY] = Plugin(options, selection, recorder)


def targets_of(options: Options, selection: Selection) -> dict[str, str]:
    """The targets of candidates by the names of their implementations, so that they can be found from any folder."""
    names = [i.name for i in selection.implementations] if options.candidates else []
    targets = map(absolute, distinct(options.candidates).values())
    return dict(zip(names, targets, strict=bool(names)))


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    options = Options.of(config)
    try:
        return answered(options)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def _selected(options: Options) -> Selection:
    try:
        return selection_of(options)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


class ClauseModule(pytest.Module):
    """The clause tests of one chapter, imported by their name in the package."""

    def collect(self) -> Iterator[pytest.Item]:
        self.config.stash[KEY].asked = True
        lines = self.path.read_text(encoding="utf-8").splitlines()
        for test in tests_of(self.path.stem.removeprefix("test_").replace("_", "-")):
            line = next(number for number, text in enumerate(lines) if f'"{test.clause}"' in text)
            yield from _items(self, test, line)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> ClauseModule | None:
    here = module_path.resolve().parent == Path(conformance.__file__).resolve().parent
    return ClauseModule.from_parent(parent, path=module_path) if here else None


def _items(collector: ClauseModule, test: ClauseTest, line: int) -> Iterator[pytest.Item]:
    plugin, clause = collector.config.stash[KEY], load()[test.clause]
    for implementation, dtype in plugin.selection.subjects(clause, test):
        name = f"{clause.id}[{implementation.name}-{dtype}]"
        item: ClauseItem = ClauseItem.from_parent(collector, name=name, callobj=_takes_nothing)
        item.subject, item.line = (clause, test, implementation, dtype), line
        yield item


def _takes_nothing() -> None:
    """Never called: pytest reads fixtures off its signature, and the judge is none, as `runtest` hands it over."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """A clause has no fixtures: without phases to set up and tear down, pytest takes a third of the time."""
    if not isinstance(item, ClauseItem):
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    leaving = (pytest.exit.Exception, KeyboardInterrupt)
    call = pytest.CallInfo.from_call(lambda: hook.pytest_runtest_call(item=item), when="call", reraise=leaving)
    hook.pytest_runtest_logreport(report=hook.pytest_runtest_makereport(item=item, call=call))
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # what is there by now stays: looking it through again and again takes a tenth of a run
    plugin = session.config.stash[KEY]
    items = [item for item in session.items if isinstance(item, ClauseItem)]
    plugin.recorder.planned = len(items)
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["planned"] = len(items)
    elif items or plugin.asked:
        _begin(session.config)
        _show_progress(session, len(items))


def _show_progress(session: pytest.Session, planned: int) -> None:
    """On a terminal, where nothing but clauses is asked."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    plain = session.config.get_verbosity() <= 0 and not session.config.option.collectonly
    if terminal is not None and terminal.isatty and plain and planned == len(session.items):
        session.config.pluginmanager.register(Progress(terminal, planned), "conformance-progress")


def _begin(config: pytest.Config) -> None:
    plugin = config.stash[KEY]
    first = not plugin.recorder.events
    try:
        plugin.recorder.begin()
        if plugin.options.report is not None:
            clear(plugin.options.report)
    except OSError as error:
        raise pytest.UsageError(f"--report: {error.filename} cannot be written ({error.strerror})") from None
    if first and plugin.options.candidates and not config.option.collectonly:
        _smoke(plugin, config.pluginmanager.get_plugin("terminalreporter"))


def _smoke(plugin: Plugin, terminal: pytest.TerminalReporter | None) -> None:
    """Before candidates are judged: whether what is wrong with them is but the way in which they are called."""
    for implementation in plugin.selection.implementations:
        with hushed():
            found = plugin.handed[implementation.name] = smoke(implementation, plugin.options.device)
        for line in found:
            if terminal is not None:
                terminal.write_line(f"{implementation.name}: {line}")


@dataclass(eq=False)
class Collector:
    """Receives the reports of a session, its workers' too."""

    plugin: Plugin

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY and report.when == "call":
                self.plugin.recorder.add(Verdict.from_json(str(value)))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        _begin(node.config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if self.plugin.recorder.planned is None and not error:
            self.plugin.recorder.planned = node.workeroutput["planned"]


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    plugin = config.stash[KEY]
    config.pluginmanager.register(Collector(plugin), "conformance-collector")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(
            Ending(plugin.options, plugin.recorder, plugin.selection.implementations), "conformance-ending"
        )


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    plugin = session.config.stash[KEY]
    stopped = {2: "the run was interrupted", 3: "the suite itself failed", 4: "the run could not start"}
    plugin.recorder.judged(stopped.get(int(exitstatus), ""))
    unchecked = unchecked_claims(plugin.selection, plugin.recorder.verdicts)
    if unchecked and exitstatus == 0:
        session.exitstatus = 1
    if hasattr(session.config, "workerinput"):
        return
    with hushed():
        finish(session.config, int(exitstatus))
    plugin.recorder.close()
    if plugin.recorder.failed_views:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
    _silence_the_idle(session.config)


def _silence_the_idle(config: pytest.Config) -> None:
    """The summary of hypothesis's plugin imports hypothesis, even where nothing was searched with it."""
    idle = config.pluginmanager.get_plugin("hypothesispytest")
    if idle is not None and "hypothesis" not in sys.modules:
        config.pluginmanager.unregister(idle)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    """Below pytest's own list of failed tests, which may fill several screens."""
    yield
    if config.stash[KEY].recorder.verdicts:
        _summarise(terminalreporter, config.stash[KEY])


def _summarise(terminalreporter: pytest.TerminalReporter, plugin: Plugin) -> None:
    terminalreporter.section("conformance")
    recorder = plugin.recorder
    for line in summary(recorder.run):
        terminalreporter.write_line(line, **colours(line))
    for line in observed(recorder.run.observed) if plugin.options.candidates else ():
        terminalreporter.write_line(line)
    for line in unchecked_claims(plugin.selection, plugin.recorder.verdicts):
        terminalreporter.write_line(f"ERROR  {line}", red=True)
    for name, reason in left_out().items() if plugin.options.all_builtin else ():
        terminalreporter.write_line(f"not asked: {name}, {reason}")
    for line in plugin.selection.notes:
        terminalreporter.write_line(line)
    for line in proposed(recorder.verdicts, recorder.run.diagnoses) if plugin.options.propose else ():
        terminalreporter.write_line(line)
    for name, reason in recorder.failed_views.items():
        terminalreporter.write_line(f"ERROR  {name} could not be made: {reason}", red=True)
    if plugin.options.report is not None:
        broken = recorder.failed_views
        terminalreporter.write_line(f"report: {plugin.options.report / (ERRORS if broken else 'report.html')}")
