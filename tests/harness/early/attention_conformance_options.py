"""The command line's options, declared before pytest reads its arguments.

Installed as a plugin of its own, because pytest takes the value of an option that it does not know yet for a path: a
report folder that exists would then decide where it looks for the suite.
"""

from __future__ import annotations

import pytest

NAME = "attention-conformance"
"""Under which the plugin is registered where it is installed."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares every option of the suite."""
    group = parser.getgroup(NAME)

    def several(name: str, metavar: str, about: str) -> None:
        group.addoption(name, action="append", default=[], metavar=metavar, help=f"{about} (repeatable)")

    several("--candidate", "TARGET", "judge only this: FILE.py:NAME or package.module:NAME")
    several("--convention", "KEY=VALUE", "a named alternative that the candidates follow")
    several("--implementation", "PATTERN", "judge only these built-in implementations, such as 'torch.*'")
    several("--clause", "PATTERN", "ask only these clauses, such as 'masks.*'")
    several("--dtype", "NAME", "ask only in these dtypes, such as float32")
    group.addoption("--device", default="cpu", help="the torch device that candidates compute on (default: cpu)")
    group.addoption("--tier", default="quick", help="how much is asked: quick (default), full or exhaustive")
    group.addoption("--report", dest="conformance_report", metavar="DIR", help="write report.json into DIR")
    group.addoption("--list-clauses", action="store_true", help="print the clauses, a line each")
    group.addoption("--list-implementations", action="store_true", help="print the implementations, a line each")
