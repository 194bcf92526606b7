"""The recorder: takes down what a run finds, at once, and makes the views when it has ended."""

from __future__ import annotations

import platform
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from attention_conformance.tests.report import views
from attention_conformance.tests.report.log import FILE, Event, assembled, encode, kept
from attention_conformance.tests.report.model import SCHEMA, Begin, Closing, Judged, Run, Subject, Suite
from attention_conformance.tests.report.verdict import Verdict

SPEC_VERSION = "0.1"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"
PACKAGES = ("torch", "numpy", "ml_dtypes", "pytest")


@dataclass
class Recorder:
    """Keeps the events of a run; with a folder, it writes each one down at once.

    Attributes:
        planned: how many verdicts a complete run has; None until the tests are collected.
    """

    subjects: Sequence[Subject]
    suite: Suite
    folder: Path | None = None
    planned: int | None = None
    events: list[Event] = field(default_factory=list)
    since: float = field(default_factory=time.perf_counter)

    @property
    def verdicts(self) -> list[Verdict]:
        """Those that came in so far."""
        return [e for e in self.events if isinstance(e, Verdict)]

    @property
    def targets(self) -> dict[str, str]:
        """Those of the candidates, by the names of their implementations."""
        return {subject.name: subject.target for subject in self.subjects if subject.target}

    @property
    def run(self) -> Run:
        """What is known so far."""
        return assembled(self.events, Path(FILE))

    def begin(self) -> None:
        """Starts log and report, once. Until `close`, the report says that it is not complete.

        Raises:
            OSError: the folder cannot be written.
        """
        if self.events:
            return
        started = datetime.now(UTC).isoformat(timespec="seconds")
        first = Begin(SCHEMA, started, self.suite, environment(), tuple(self.subjects))
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            views.clear(self.folder)
            (self.folder / FILE).write_text("", encoding="utf-8")
            views.write_unfinished(Run(first, [], Closing(False, "the run has not ended", 0, 0.0)), self.folder)
        self.add(first)

    def add(self, event: Event) -> None:
        """Takes an event down."""
        line = encode(event)
        self.events.append(kept(event, line))
        if self.folder is not None:
            with (self.folder / FILE).open("a", encoding="utf-8") as log:
                log.write(line + "\n")

    def judged(self, interrupted: str = "") -> None:
        """All verdicts are in, unless something interrupted the run or a planned one is missing."""
        if self.events:
            count = len(self.verdicts)
            missing = "" if self.planned == count else f"{count} of {self.planned} verdicts"
            self.add(Judged(count, interrupted or missing))

    def close(self) -> None:
        """Ends the log, and makes the views from it."""
        if not self.events:
            return
        judged = next((e for e in self.events if isinstance(e, Judged)), Judged(len(self.verdicts), "it was cut short"))
        seconds = round(time.perf_counter() - self.since, 3)
        self.add(Closing(not judged.reason, judged.reason, judged.verdicts, seconds))
        if self.folder is not None:
            views.write(self.run, self.folder)


def suite_version() -> str:
    """The version of the clone that runs; an installed one may be older."""
    found: str = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    return found


def environment() -> dict[str, str]:
    """Versions and machine, as far as they may change an answer."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        **{package: version(package) for package in PACKAGES},
    }
