"""Printing: what a run prints when all is judged: one screen, or everything."""

from functools import partial
from textwrap import wrap

import pytest

from attention_conformance.tests.harness.explain import reduction
from attention_conformance.tests.harness.run import post_run
from attention_conformance.tests.harness.run.plan.expected_failures import proposed
from attention_conformance.tests.harness.run.plan.selection import left_out
from attention_conformance.tests.harness.run.screen.progress import colours
from attention_conformance.tests.harness.run.session import SuiteSession
from attention_conformance.tests.report.views import ERRORS, first_screen
from attention_conformance.tests.report.views.first_screen import WIDTH
from attention_conformance.tests.report.views.terminal import observed, summary


def in_lines(message: str) -> str:
    """A message after "ERROR: ", or two letters more, in lines of a screen."""
    start = " " * len("ERROR: ")
    whole = partial(wrap, width=WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    lines = map(whole, f"{start}{message}".splitlines())
    return "\n".join(line for wrapped in lines for line in wrapped).removeprefix(start)


def summarise(terminalreporter: pytest.TerminalReporter, state: SuiteSession) -> None:
    """One screen for a single candidate of the command; everything for pytest, and with -v."""
    if state.settings.first_screen and sum(map(bool, state.recorder.run.by_name.values())) == 1:
        _first_screen(terminalreporter, state)
    else:
        _all(terminalreporter, state)
    _last_notes(terminalreporter, state)


def _first_screen(terminal: pytest.TerminalReporter, state: SuiteSession) -> None:
    """One screen, and below it what no screen may leave out."""
    run, shown, report = state.recorder.run, state.shown, state.settings.report
    case = list(reduction.lines(shown.counterexample)) if shown is not None and shown.counterexample else []
    for line in first_screen.lines(run, case):
        terminal.write_line(line, **colours(line))
    if shown is not None and report is not None:
        for line in post_run.failure_lines(shown, state.settings, False):
            terminal.write_line(f"  {line}")


def _all(terminalreporter: pytest.TerminalReporter, state: SuiteSession) -> None:
    """The matrix, every clause that does not hold, and what was observed."""
    terminalreporter.section("conformance")
    settings, run = state.settings, state.recorder.run
    for line in summary(run):
        terminalreporter.write_line(line, **colours(line))
    for line in observed(run.observed) if settings.has_candidates else ():
        terminalreporter.write_line(line)


def _last_notes(terminalreporter: pytest.TerminalReporter, state: SuiteSession) -> None:
    """Claims that were not checked, what candidates left behind, and where the report is."""
    settings, run = state.settings, state.recorder.run
    for line in post_run.unchecked_claims(state.selection, state.recorder.verdicts, state.settings.shard):
        terminalreporter.write_line(f"ERROR  {in_lines(line) if settings.first_screen else line}", red=True)
    for name, reason in left_out().items() if settings.all_builtin else ():
        terminalreporter.write_line(f"not checked: {name}, {reason}")
    for line in state.selection.notes:
        terminalreporter.write_line(line)
    for line in dict.fromkeys([*state.leftovers, *post_run.leftovers(state.selection.implementations)]):
        terminalreporter.write_line(line)
    for line in proposed(state.recorder.verdicts, run.diagnoses) if settings.propose else ():
        terminalreporter.write_line(line)
    if state.recorder.unwritten:
        terminalreporter.write_line(f"ERROR  the report: {state.recorder.unwritten}", red=True)
    failed_views = state.recorder.failed_views
    for name, reason in failed_views.items():
        terminalreporter.write_line(f"ERROR  {name} could not be made: {reason}", red=True)
    if settings.report is not None:
        terminalreporter.write_line(f"report: {settings.report / (ERRORS if failed_views else 'report.html')}")
