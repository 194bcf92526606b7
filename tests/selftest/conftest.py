"""Says at the end which of the suite's own tests were not run, and what they lack: a row of dots does not."""

from __future__ import annotations

from collections import Counter

import pytest
import torch._dynamo

OWN = "tests/selftest/"
LOADED = (torch._dynamo,)
"""Sessions of pytest in this process drop the modules that they import, and torch registers this one only once."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", metavar="DIR", help="take pictures of the pages that are looked at")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = (each for each in terminalreporter.stats.get("skipped", []) if each.nodeid.startswith(OWN))
    for (file, reason), count in Counter(map(_why, skipped)).items():
        terminalreporter.write_line(f"NOT RUN: {count} of {file}: {reason}")


def _why(report: pytest.TestReport) -> tuple[str, str]:
    told = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return report.nodeid.partition("::")[0], told.removeprefix("Skipped: ")
