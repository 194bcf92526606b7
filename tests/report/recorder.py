"""The recorder: writes down each record of a run at once, and makes the views when the run has ended."""

import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from attention_conformance.tests.report import views
from attention_conformance.tests.report.folder import Claim, FolderError, claim, unwritten
from attention_conformance.tests.report.log import CUT, FILE, as_written, assembled, encode
from attention_conformance.tests.report.model import SCHEMA, Closing, Event, Opening, Run, Subject, Suite, VerdictsEnd
from attention_conformance.tests.report.verdict import Verdict

SPEC_VERSION = "0.1"
RUNNING = "the run has not ended"
PACKAGES = ("torch", "numpy", "ml_dtypes", "pytest")


@dataclass
class Recorder:
    """Keeps the events of a run; with a folder, it writes each one down at once.

    Attributes:
        verdicts: those of the events.
        failed_views: why a file could not be made, by its name.
        unwritten: why the log or a view could not be written; empty if all were.
        planned: how many verdicts a complete run has; None until the tests are collected.
    """

    subjects: Sequence[Subject]
    suite: Suite
    folder: Path | None = None
    planned: int | None = None
    events: list[Event] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list, init=False)
    failed_views: Mapping[str, str] = field(default_factory=dict)
    since: float = field(default_factory=time.perf_counter)
    unwritten: str = ""
    claimed: Claim | None = None
    closed: bool = False

    @property
    def targets(self) -> dict[str, str]:
        """Those of the candidates, by the names of their implementations."""
        return {subject.name: subject.target for subject in self.subjects if subject.target}

    @property
    def run(self) -> Run:
        """The run, as far as it is recorded."""
        return assembled(self.events, Path(FILE))

    def claim(self) -> None:
        """Takes the folder for this run: no view of an earlier one stays, and the report is marked as not complete.

        Raises:
            FolderError: the folder cannot be written, or another run writes into it.
        """
        if self.folder is None or self.claimed is not None:
            return
        self.claimed = claim(self.folder)
        try:
            views.clear(self.folder)
            (self.folder / FILE).unlink(missing_ok=True)
            views.write_unfinished(self._nothing(RUNNING), self.folder)
        except OSError as error:
            raise FolderError(f"{unwritten(error, self.folder)}: give another folder") from None

    def begin(self) -> None:
        """Starts log and report, once. Until `close`, the report states that it is not complete.

        Raises:
            FolderError: see `claim`.
            OSError: it cannot be written.
        """
        if not self.events:
            self.claim()
            self.add(self._opening())
            if self.folder is not None:
                views.write_unfinished(self._nothing(RUNNING), self.folder)

    def add(self, event: Event) -> None:
        """Records an event. Where the log cannot be written, `unwritten` states why, and it ends there."""
        line = encode(event)
        event = as_written(event, line)
        self.events.append(event)
        if isinstance(event, Verdict):
            self.verdicts.append(event)
        if self.folder is not None and not self.unwritten:
            try:
                with (self.folder / FILE).open("a", encoding="utf-8") as log:
                    log.write(line + "\n")
            except OSError as error:
                self.unwritten = unwritten(error, self.folder / FILE)

    def judged(self, interrupted: str = "") -> None:
        """Records that all verdicts are there, unless the run was interrupted or a planned one is missing."""
        if self.events:
            count = len(self.verdicts)
            missing = "" if self.planned == count else f"{count} of {self.planned} verdicts"
            self.add(VerdictsEnd(count, self.unwritten or interrupted or missing))

    def close(self, cut: str = "") -> None:
        """Makes the views, ends the log, and leaves the folder; once. Views that fail are in `failed_views`.

        Args:
            cut: why the run is not complete, if something came between after its verdicts, or before them.
        """
        if self.closed:
            return
        self.closed = True
        if self.events:
            self._end(cut)
        elif self.claimed is not None:
            self._write(self._nothing(cut or "nothing was run"))
        if self.claimed is not None:
            self.claimed.close()

    def _end(self, cut: str) -> None:
        end = next((e for e in self.events if isinstance(e, VerdictsEnd)), VerdictsEnd(len(self.verdicts), CUT))
        reason = self.unwritten or end.reason or cut
        closing = Closing(not reason, reason, end.verdicts, round(time.perf_counter() - self.since, 3))
        if self.claimed is not None and not self._write(replace(self.run, closing=closing)):
            closing = replace(closing, complete=False, reason=closing.reason or self.unwritten)
        self.add(closing)

    def _write(self, run: Run) -> bool:
        """Writes the views; where there is no room for one, those that are left state that the run is not complete."""
        assert self.folder is not None
        try:
            self.failed_views = views.write(run, self.folder)
            return True
        except OSError as error:
            self.unwritten = self.unwritten or unwritten(error, self.folder)
        reason = run.closing.reason or self.unwritten
        with suppress(OSError):
            views.clear(self.folder)
            views.write_unfinished(self._nothing(reason), self.folder)  # there may be no room for a larger one
            views.write(replace(run, closing=replace(run.closing, complete=False, reason=reason)), self.folder)
        return False

    def _opening(self) -> Opening:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        return Opening(SCHEMA, started, self.suite, environment(), tuple(self.subjects))

    def _nothing(self, reason: str) -> Run:
        return Run(self._opening(), [], Closing(False, reason, 0, 0.0))


def environment() -> dict[str, str]:
    """Versions and machine, as far as they may change an answer."""
    machine = {"machine": platform.machine(), "system": platform.system()}
    return {"python": platform.python_version(), **machine, **{package: version(package) for package in PACKAGES}}
