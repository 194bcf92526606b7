"""Fixtures of the suite's own tests, and lines at the end on those that were not run: a row of dots shows none."""

from collections import Counter

import pytest
import torch._dynamo

from attention_conformance.implementations.api.global_state import compute_on_one_thread
from attention_conformance.tests.selftest.discovery.making import make
from attention_conformance.tests.selftest.sessions import sessions
from attention_conformance.tests.selftest.thorough import OPTION, postpone, thorough

__all__ = ["make", "sessions"]

OWN = "tests/selftest/"
LOADED = (torch._dynamo,)
"""Sessions of pytest in this process drop the modules that they import, and torch registers this one only once."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", metavar="DIR", help="take pictures of the pages that are looked at")
    parser.addoption(OPTION, action="store_true", help="run also tests that repeat others in more dtypes or variants")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("pytester")  # which `sessions` needs
    config.addinivalue_line("markers", f"{thorough.name}: repeats what others show; run with {OPTION}")
    compute_on_one_thread()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    postpone(items, config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = (each for each in terminalreporter.stats.get("skipped", []) if each.nodeid.startswith(OWN))
    for (file, reason), count in Counter(map(_why, skipped)).items():
        terminalreporter.write_line(f"NOT RUN: {count} of {file}: {reason}")


def _why(report: pytest.TestReport) -> tuple[str, str]:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return report.nodeid.partition("::")[0], reason.removeprefix("Skipped: ")
