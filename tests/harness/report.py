"""The report: an event log while the run goes on, and report.json, which says whether it is complete."""

from __future__ import annotations

import json
import platform
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from implementations.contract import Implementation
from tests.harness.verdicts import Status, Verdict

SCHEMA = "attention-conformance/report/1"
SCHEMA_FILE = Path(__file__).with_name("report.schema.json")
SPEC_VERSION = "0.1"
PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@dataclass
class Recorder:
    """Collects verdicts; with a folder, it writes each one down at once.

    Attributes:
        planned: how many verdicts a complete run has; None until the tests are collected.
    """

    implementations: Sequence[Implementation]
    run: Mapping[str, Any]
    folder: Path | None = None
    planned: int | None = None
    verdicts: list[Verdict] = field(default_factory=list)
    begun: bool = False
    closing: Mapping[str, Any] | None = None
    diagnoses: dict[str, str] = field(default_factory=dict)
    observed: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def begin(self) -> None:
        """Starts log and report, once. Until `finish`, the report says that it is not complete.

        Raises:
            OSError: the folder cannot be written.
        """
        if self.folder is not None and not self.begun:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "events.jsonl").write_text("")
            self._write({"complete": False, "reason": "the run has not ended", "verdicts": 0})
            self.begun = True

    def add(self, verdict: Verdict) -> None:
        """Takes a verdict down."""
        self.verdicts.append(verdict)
        self._log(verdict.to_json())

    def finish(self, interrupted: str = "") -> None:
        """Closes the report; it is complete only if nothing interrupted it and every planned verdict is there."""
        missing = "" if self.planned == len(self.verdicts) else f"{len(self.verdicts)} of {self.planned} verdicts"
        reason = interrupted or missing
        closing = {"complete": not reason, "reason": reason, "verdicts": len(self.verdicts)}
        if self.begun:
            self.closing = closing
            self._write(closing)
            self._log(json.dumps({"closing": closing}))

    def rewrite(self) -> None:
        """Writes a report that is closed once more, with the diagnoses and observations that were made since."""
        if self.closing is not None:
            self._write(self.closing)

    def _log(self, line: str) -> None:
        if self.begun and self.folder is not None:
            with (self.folder / "events.jsonl").open("a") as log:
                log.write(line + "\n")

    def _write(self, closing: Mapping[str, Any]) -> None:
        assert self.folder is not None
        report = {
            "schema": SCHEMA,
            "suite": {"version": suite_version(), "spec": SPEC_VERSION, **self.run},
            "environment": environment(),
            "implementations": [self._entry(i) for i in self.implementations],
            "closing": closing,
        }
        unfinished = self.folder / "report.json.part"
        unfinished.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n")
        unfinished.replace(self.folder / "report.json")

    def _entry(self, implementation: Implementation) -> dict[str, Any]:
        mine = [v for v in self.verdicts if v.implementation == implementation.name]
        claims = implementation.claims
        return {
            "name": implementation.name,
            "about": implementation.about,
            "claims": {
                "scope": str(claims.scope),
                "features": sorted(claims.features),
                "dtypes": list(claims.dtypes),
                "conventions": dict(claims.conventions.items()),
            },
            "verdict": overall(mine),
            "diagnosis": self.diagnoses.get(implementation.name, ""),
            "observed": dict(self.observed.get(implementation.name, {})),
            "clauses": [json.loads(v.to_json()) for v in mine],
        }


def overall(verdicts: Sequence[Verdict]) -> str:
    """`fails` if a MUST fails, `error` if the suite could not judge (or judged nothing), else `conforms`."""
    if any(v.status is Status.FAIL and v.level == "MUST" for v in verdicts):
        return "fails"
    if any(v.status is Status.ERROR for v in verdicts) or not any(v.checks for v in verdicts):
        return "error"
    return "conforms"


def suite_version() -> str:
    """The version of the clone that runs; an installed one may be older."""
    found: str = tomllib.loads(PROJECT.read_text())["project"]["version"]
    return found


def environment() -> dict[str, str]:
    """Versions and machine, as far as they may change an answer."""
    packages = ("torch", "numpy", "ml_dtypes", "pytest")
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        **{package: version(package) for package in packages},
    }
