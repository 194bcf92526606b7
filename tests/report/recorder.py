"""The recorder: writes down each record of a run at once, and makes the views when the run has ended."""

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from attention_conformance.tests.report import views
from attention_conformance.tests.report.log import FILE, as_written, assembled, encode
from attention_conformance.tests.report.model import SCHEMA, Closing, Event, Opening, Run, Subject, Suite, VerdictsEnd
from attention_conformance.tests.report.verdict import Verdict

SPEC_VERSION = "0.1"
PACKAGES = ("torch", "numpy", "ml_dtypes", "pytest")


@dataclass
class Recorder:
    """Keeps the events of a run; with a folder, it writes each one down at once.

    Attributes:
        failed_views: why a file could not be made, by its name.
        planned: how many verdicts a complete run has; None until the tests are collected.
    """

    subjects: Sequence[Subject]
    suite: Suite
    folder: Path | None = None
    planned: int | None = None
    events: list[Event] = field(default_factory=list)
    failed_views: Mapping[str, str] = field(default_factory=dict)
    since: float = field(default_factory=time.perf_counter)

    @property
    def verdicts(self) -> list[Verdict]:
        """Those that were recorded so far."""
        return [e for e in self.events if isinstance(e, Verdict)]

    @property
    def targets(self) -> dict[str, str]:
        """Those of the candidates, by the names of their implementations."""
        return {subject.name: subject.target for subject in self.subjects if subject.target}

    @property
    def run(self) -> Run:
        """The run, as far as it is recorded."""
        return assembled(self.events, Path(FILE))

    def begin(self) -> None:
        """Starts log and report, once. Until `close`, the report states that it is not complete.

        Raises:
            OSError: the folder cannot be written.
        """
        if self.events:
            return
        started = datetime.now(UTC).isoformat(timespec="seconds")
        first = Opening(SCHEMA, started, self.suite, environment(), tuple(self.subjects))
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            views.clear(self.folder)
            (self.folder / FILE).write_text("", encoding="utf-8")
            views.write_unfinished(Run(first, [], Closing(False, "the run has not ended", 0, 0.0)), self.folder)
        self.add(first)

    def add(self, event: Event) -> None:
        """Records an event."""
        line = encode(event)
        self.events.append(as_written(event, line))
        if self.folder is not None:
            with (self.folder / FILE).open("a", encoding="utf-8") as log:
                log.write(line + "\n")

    def judged(self, interrupted: str = "") -> None:
        """Records that all verdicts are there, unless the run was interrupted or a planned one is missing."""
        if self.events:
            count = len(self.verdicts)
            missing = "" if self.planned == count else f"{count} of {self.planned} verdicts"
            self.add(VerdictsEnd(count, interrupted or missing))

    def close(self) -> None:
        """Ends the log, and makes the views from it. Views that fail are in `failed_views`, and the others are made."""
        if not self.events:
            return
        cut = VerdictsEnd(len(self.verdicts), "the run was cut short")
        end = next((e for e in self.events if isinstance(e, VerdictsEnd)), cut)
        seconds = round(time.perf_counter() - self.since, 3)
        self.add(Closing(not end.reason, end.reason, end.verdicts, seconds))
        if self.folder is not None:
            self.failed_views = views.write(self.run, self.folder)


def environment() -> dict[str, str]:
    """Versions and machine, as far as they may change an answer."""
    machine = {"machine": platform.machine(), "system": platform.system()}
    return {"python": platform.python_version(), **machine, **{package: version(package) for package in PACKAGES}}
