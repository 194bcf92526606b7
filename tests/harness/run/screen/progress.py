"""Progress on a terminal: one line, written over, with how much is done, how much failed, and the time left."""

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from shutil import get_terminal_size
from typing import Any

import pytest

EVERY = 0.1
"""Seconds between two writings of the line; the first verdict is shown at once."""
AFTER, SHARE = 2.0, 0.02
"""Seconds, and share of the run, before which the time left is not estimated."""
COLOURS = {"FAIL ": "red", "ERROR ": "red", "advice (": "yellow", "known deviation ": "yellow"}
VERDICTS = {"fails": "red", "error": "red", "conforms": "green"}


@dataclass(eq=False)
class Progress:
    """Takes the place of pytest's rows of letters.

    Attributes:
        terminal: where the line goes.
        planned: how many verdicts a complete run has.
        clock: gives seconds.
    """

    terminal: pytest.TerminalReporter
    planned: int
    clock: Callable[[], float] = time.perf_counter
    done: int = 0
    failed: int = 0
    since: float = field(init=False)
    written: float = float("-inf")

    def __post_init__(self) -> None:
        self.since = self.clock()
        self.terminal._show_progress_info = False  # the percentages next to those letters

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_teststatus(self) -> Generator[None, tuple[str, str, Any], tuple[str, str, Any]]:
        """Leaves out the letter, not what it stands for."""
        category, _, word = yield
        return category, "", word

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.done += 1
            self.failed += report.failed
            now = self.clock()
            if now - self.written >= EVERY:
                self.written = now
                self.terminal.rewrite(self.line(now)[: get_terminal_size().columns - 1], erase=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Nothing is left of the line."""
        self.terminal.rewrite("", erase=True)
        self.terminal.rewrite("")

    def line(self, now: float) -> str:
        """Such as "412 of 5188 checked, 1 failed, 1 min 20 s left"."""
        passed, share = now - self.since, self.done / max(self.planned, 1)
        failed = f", {self.failed} failed" if self.failed else ""
        known = passed >= AFTER and share >= SHARE
        left = f", {duration(passed / share - passed)} left" if known else ""
        return f"{self.done} of {self.planned} checked{failed}{left}"


def duration(seconds: float) -> str:
    """Seconds in words: 8 s, 2 min 5 s, 1 h 4 min."""
    whole = max(round(seconds), 0)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def colours(line: str) -> dict[str, bool]:
    """The colour of a line of the summary, where there are colours; the words state the same."""
    start = next((colour for word, colour in COLOURS.items() if line.strip().startswith(word)), "")
    end = next(
        (
            colour
            for word, colour in VERDICTS.items()
            if line.rstrip().partition(",")[0].partition(": ")[0].endswith(word)
        ),
        "",
    )
    return {start or end: True} if start or end else {}
