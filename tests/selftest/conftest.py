"""Fixtures of the suite's own tests, and lines at the end on those that were not run: a row of dots shows none."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from _pytest import pytester as sessions_of_pytest

from attention_conformance.implementations.api.global_state import compute_on_one_thread
from attention_conformance.tests.selftest.discovery.making import make
from attention_conformance.tests.selftest.sessions import sessions
from attention_conformance.tests.selftest.thorough import OPTION, postpone, thorough

__all__ = ["make", "sessions"]

OWN = "tests/selftest/"
Snapshot = sessions_of_pytest.SysModulesSnapshot


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", metavar="DIR", help="take pictures of the pages that are looked at")
    parser.addoption(OPTION, action="store_true", help="run also tests that repeat others in more dtypes or variants")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("pytester")  # which `sessions` needs
    config.addinivalue_line("markers", f"{thorough.name}: repeats what others show; run with {OPTION}")
    compute_on_one_thread()
    sessions_of_pytest.SysModulesSnapshot = _without_libraries  # type: ignore[assignment, misc]


def _without_libraries(preserve: Callable[[str], bool] | None = None) -> Snapshot:
    """Sessions in this process drop what they import, but no libraries: torch and JAX register things only once."""
    return Snapshot(lambda name: _is_library(name) or (preserve is not None and preserve(name)))


def _is_library(name: str) -> bool:
    file = getattr(sys.modules.get(name.partition(".")[0]), "__file__", None)
    return "site-packages" in Path(file or "").parts


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    postpone(items, config)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = (each for each in terminalreporter.stats.get("skipped", []) if each.nodeid.startswith(OWN))
    for (file, reason), count in Counter(map(_why, skipped)).items():
        terminalreporter.write_line(f"NOT RUN: {count} of {file}: {reason}")


def _why(report: pytest.TestReport) -> tuple[str, str]:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return report.nodeid.partition("::")[0], reason.removeprefix("Skipped: ")
