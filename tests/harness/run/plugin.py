"""The pytest side: options, one test item for each clause, implementation and dtype, and the report of the run."""

import gc
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from attention_conformance.implementations.api.global_state import compute_on_one_thread, multiply_on_one_thread
from attention_conformance.implementations.discovery.candidates import distinct
from attention_conformance.implementations.discovery.targets.loading import Target
from attention_conformance.implementations.worker.remote import Remote, share_losses
from attention_conformance.tests import conformance
from attention_conformance.tests.harness.explain.failure_artifacts import clear
from attention_conformance.tests.harness.judge.clause_tests import Selection
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run import interrupts, options, post_run
from attention_conformance.tests.harness.run.clause_items import ClauseItem, ClauseModule
from attention_conformance.tests.harness.run.collector import Collector
from attention_conformance.tests.harness.run.exit_status import ExitStatus, exit_status
from attention_conformance.tests.harness.run.plan.budget import Budget, in_order, left_out
from attention_conformance.tests.harness.run.plan.failing_first import FailingFirst
from attention_conformance.tests.harness.run.plan.selection import UsageError, hushed, selection_of, settings_of
from attention_conformance.tests.harness.run.plan.sharding import Group, Shard, long_groups
from attention_conformance.tests.harness.run.queries import answered
from attention_conformance.tests.harness.run.run_records import subject_of, suite_of
from attention_conformance.tests.harness.run.screen.explanations import explain
from attention_conformance.tests.harness.run.screen.first_failure import FirstFailure, telling_first
from attention_conformance.tests.harness.run.screen.next_steps import folded, next_steps
from attention_conformance.tests.harness.run.screen.printing import in_lines, summarise
from attention_conformance.tests.harness.run.screen.progress import Progress
from attention_conformance.tests.harness.run.second_judge import SHARED, SharedWork
from attention_conformance.tests.harness.run.session import ENDS, KEY, LEFTOVERS, LOSSES, USAGE_ERROR, SuiteSession
from attention_conformance.tests.harness.run.smoke import smoke
from attention_conformance.tests.report.folder import FolderError, unwritten
from attention_conformance.tests.report.log import UNEXPLAINED, encode
from attention_conformance.tests.report.model import key_of
from attention_conformance.tests.report.recorder import Recorder
from attention_conformance.tests.report.views.first_screen import WIDTH

STOPPED: Mapping[int, str] = {
    ExitStatus.INTERRUPTED: "the run was interrupted",
    ExitStatus.SUITE_ERROR: "the suite itself failed",
    ExitStatus.UNUSABLE: "the run could not start",
}
"""Why a run is not complete, by the exit status of pytest."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    config = pluginmanager.get_plugin("pytestconfig")
    if not pluginmanager.has_plugin(options.NAME) or not options.on_the_suite(config):
        options.declare(parser)


def pytest_configure(config: pytest.Config) -> None:
    gc.freeze()  # what imports brought stays, and would be looked through once
    since = time.monotonic()
    worker = hasattr(config, "workerinput")
    # The processes of -n read them anew, when the folder of the report is there: pytest would look for settings in it.
    config.invocation_params = options.joined(config.invocation_params)
    try:
        settings = settings_of(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    if settings.first_screen:
        config.option.verbose, config.option.tbstyle = -2, "no"
    recorder = Recorder([], suite_of(settings), None if worker else settings.report)
    if not worker:
        interrupts.end_with_report(config)
        config.add_cleanup(recorder.close)
    if not worker and not settings.isolated:
        interrupts.no_silent_exit(config)
    selection = _selection(settings, recorder)
    settings = replace(settings, dtypes=selection.dtypes)
    if folder := getattr(config, "workerinput", {}).get(LOSSES):
        share_losses(selection.implementations, Path(folder))
    targets = _targets(settings, selection)
    recorder.subjects = [
        subject_of(i, targets.get(i.name, ""), settings.has_candidates) for i in selection.implementations
    ]
    budget = Budget(math.inf if settings.budget is None else settings.budget, since)
    config.stash[KEY] = SuiteSession(settings, selection, recorder, budget)
    if file := config.getoption("failing_first"):
        config.pluginmanager.register(FailingFirst(config.stash[KEY], Path(file)), "conformance-failing-first")


def _selection(settings: RunSettings, recorder: Recorder) -> Selection:
    """What is selected. The folder of the report is claimed before any candidate is imported, which may end all."""
    try:
        recorder.claim()
        return selection_of(settings)
    except FolderError as error:
        raise pytest.UsageError(f"--report: {error}") from None
    except UsageError as error:
        recorder.close(f"the run could not start: {error}")
        raise pytest.UsageError(in_lines(str(error)) if settings.first_screen else str(error)) from None
    except pytest.exit.Exception as error:
        recorder.close(f"the run was {error}")
        raise


def _targets(settings: RunSettings, selection: Selection) -> dict[str, str]:
    """The targets of candidates by the names of their implementations, so that they can be found from any folder."""
    targets = (Target.parse(each).absolute for each in distinct(settings.candidates).values())
    names = (i.name for i in selection.implementations)  # what commands start comes last, and has no target
    return dict(zip(names, targets, strict=False))


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    try:
        return answered(config)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> ClauseModule | None:
    here = module_path.resolve().parent == Path(conformance.__file__).resolve().parent
    return ClauseModule.from_parent(parent, path=module_path) if here else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """A clause has no fixtures: without phases to set up and tear down, pytest takes a third of the time."""
    if not isinstance(item, ClauseItem):
        return None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    leaving = (pytest.exit.Exception, KeyboardInterrupt)
    manager = item.config.pluginmanager
    # pytest's plugin of logs relies on the phase before: it runs wherever the settings are not the suite's own.
    made = manager.subset_hook_caller("pytest_runtest_call", [manager.get_plugin("logging-plugin")])
    call = pytest.CallInfo.from_call(lambda: made(item=item), when="call", reraise=leaving)
    hook.pytest_runtest_logreport(report=hook.pytest_runtest_makereport(item=item, call=call))
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Hands what a process cannot collect, such as a path that does not exist, to the process that started it."""
    try:
        return (yield)
    except pytest.UsageError as error:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[USAGE_ERROR] = "\n".join(map(str, error.args))
        raise


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves those of this shard: telling ones first for a first screen, what may end a candidate's process last."""
    state, clauses = config.stash[KEY], [item for item in items if isinstance(item, ClauseItem)]
    if shard := state.settings.shard:
        _leave(Shard.parse(shard), config, items)
    if state.settings.budget is not None:
        place = {id(planned): number for number, planned in enumerate(in_order([each.planned for each in clauses]))}
        items.sort(key=lambda item: place[id(item.planned)] if isinstance(item, ClauseItem) else -1)
    elif state.settings.first_screen and len(clauses) == len(items):
        # A second judge begins at the end: nobody waits for one that is begun late and takes long.
        taken = long_groups([_group(item) for item in items])
        items.sort(key=lambda item: taken.get(_group(item), 0.0))
        items.sort(key=lambda item: telling_first(item.planned) if isinstance(item, ClauseItem) else 0)
    items.sort(key=lambda item: isinstance(item, ClauseItem) and item.planned.test.last)


def _leave(shard: Shard, config: pytest.Config, items: list[pytest.Item]) -> None:
    own = shard.own(map(_group, items))
    config.hook.pytest_deselected(items=[item for item in items if _group(item) not in own])
    items[:] = [item for item in items if _group(item) in own]


def _group(item: pytest.Item) -> Group:
    if isinstance(item, ClauseItem):
        return item.planned.clause.id, item.planned.implementation.name
    return item.nodeid, ""


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()  # what is there by now stays: looking it through again and again takes a tenth of a run
    state = session.config.stash[KEY]
    items = [item for item in session.items if isinstance(item, ClauseItem)]
    state.recorder.planned, state.planned = len(items), [item.planned for item in items]
    if items and state.settings.has_candidates and state.settings.isolated:
        multiply_on_one_thread()
    elif items:
        compute_on_one_thread()
    if not hasattr(session.config, "workeroutput") and (items or state.has_chapters):
        _begin(session.config)
        _show_progress(session, len(items))
        _share_work(session.config, len(items) == len(session.items))


def _share_work(config: pytest.Config, only_clauses: bool) -> None:
    """With a second judge, where nobody wants to see how one check follows another."""
    state, option = config.stash[KEY], config.option
    in_turn = (
        option.maxfail or option.usepdb or option.collectonly or config.getoption("numprocesses", None) is not None
    )
    alike = only_clauses and state.settings.has_candidates and not any(state.adapter_mistakes.values())
    if alike and not in_turn:
        config.stash[SHARED] = shared = SharedWork.of(state.planned, state.settings)
        config.add_cleanup(shared.end)


def _show_progress(session: pytest.Session, planned: int) -> None:
    """On a terminal, where nothing but clauses is run."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    state = session.config.stash[KEY]
    if terminal is not None and state.settings.first_screen and not session.config.option.collectonly:
        session.config.pluginmanager.register(FirstFailure(state, session, terminal), "conformance-first-failure")
    plain = session.config.get_verbosity() <= 0 and not session.config.option.collectonly
    if terminal is not None and terminal.isatty and plain and planned == len(session.items):
        session.config.pluginmanager.register(Progress(terminal, planned), "conformance-progress")


def _begin(config: pytest.Config) -> None:
    state = config.stash[KEY]
    first = not state.recorder.events
    try:
        state.recorder.begin()
        if state.settings.report is not None:
            clear(state.settings.report)
    except FolderError as error:
        raise pytest.UsageError(f"--report: {error}") from None
    except OSError as error:
        raise pytest.UsageError(f"--report: {unwritten(error, Path())}") from None
    if first and state.settings.has_candidates and not config.option.collectonly:
        _smoke(state, config.pluginmanager.get_plugin("terminalreporter"))


def _smoke(state: SuiteSession, terminal: pytest.TerminalReporter | None) -> None:
    """Before candidates are judged: whether only the way in which they are called is wrong."""
    for implementation in state.selection.implementations:
        with hushed():
            mistakes = smoke(implementation, state.settings.device)
        state.adapter_mistakes[implementation.name] = tuple(each.text for each in mistakes)
        state.intended[implementation.name] = mistakes[0].options if len(mistakes) == 1 else ()
        if isinstance(implementation.run, Remote):
            implementation.run.door.deaths.clear()  # the clauses have to show how it dies
        for each in mistakes:
            if terminal is not None:
                terminal.write_line(f"{implementation.name}: {each.text}")


@dataclass(eq=False)
class LastLines:
    """Sets the exit status, and writes below everything else what to do next."""

    state: SuiteSession

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Iterator[None]:
        config, state = session.config, self.state
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        try:
            yield
        except BrokenPipeError:  # nobody reads what would be written of it
            raise
        except Exception as error:
            config.notify_exception(pytest.ExceptionInfo.from_exception(error), config.option)
            state.crashed = True
            session.exitstatus = ExitStatus.SUITE_ERROR
        status = int(session.exitstatus)
        if terminal is not None and (state.recorder.events or status == ExitStatus.SUITE_ERROR):
            steps = next_steps(status, state.settings, state.selection, state.recorder, state.intended)
            room = WIDTH - len("next: ") if state.settings.first_screen else sys.maxsize
            for number, line in enumerate(line for step in steps for line in folded(step, room)):
                terminal.write_line(f"{'     ' if number else 'next:'} {line}")


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    config.pluginmanager.register(Collector(config.stash[KEY], _begin), "conformance-collector")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(LastLines(config.stash[KEY]), "conformance-last-lines")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config, state = session.config, session.config.stash[KEY]
    cut = STOPPED.get(int(exitstatus), "")
    if state.settings.budget is not None and not cut:
        done = map(key_of, state.recorder.verdicts)
        cut = left_out(state.planned or list(state.selection.plan()), done, state.budget.limit)
    verdicts = () if cut else state.recorder.verdicts
    ends = list(post_run.bad_ends(state.selection.implementations, verdicts, state.settings))
    if hasattr(config, "workeroutput"):
        config.workeroutput[LEFTOVERS] = list(post_run.leftovers(state.selection.implementations))
        config.workeroutput[ENDS] = list(map(encode, ends))
        return
    if state.record_ends(ends) and int(exitstatus) == ExitStatus.CONFORMS:
        exitstatus = ExitStatus.FAILS
    state.recorder.judged(cut)
    planned = state.recorder.planned or 0
    only_others = planned == 0 and int(exitstatus) == ExitStatus.CONFORMS  # tests that are no clauses, which all passed
    if state.recorder.events and not config.option.collectonly and not only_others:
        verdicts = state.recorder.verdicts
        unchecked = post_run.unchecked_claims(state.selection, verdicts, state.settings.shard)
        findings = any(each.findings for each in state.selection.implementations)
        session.exitstatus = exit_status(int(exitstatus), state.crashed, verdicts, planned, bool(unchecked), findings)
    try:
        with hushed():
            explain(config, int(exitstatus))
    except KeyboardInterrupt:
        cut = cut or UNEXPLAINED
        session.exitstatus = ExitStatus.INTERRUPTED
    except Exception:
        cut = cut or STOPPED[ExitStatus.SUITE_ERROR]
        raise
    finally:
        with interrupts.held():
            state.recorder.close(cut)
    if state.recorder.unwritten:
        session.exitstatus = ExitStatus.INTERRUPTED
    elif state.recorder.failed_views:
        session.exitstatus = ExitStatus.SUITE_ERROR
    _silence_the_idle(config)


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
        summarise(terminalreporter, config.stash[KEY])
