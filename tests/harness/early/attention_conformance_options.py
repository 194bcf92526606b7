"""The command line's options, installed as a plugin of its own so that pytest knows them from the start.

Before it knows any plugin, pytest takes a lone argument that names a folder for the place of the tests. `--report DIR`
with a folder that exists would so hide the suite's configuration; it is then read once more as `--report=DIR`. The same
goes for `--replay FILE`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    group.addoption("--replay", metavar="FAILURE.json", help="ask again what a failure file of --report holds")
    group.addoption("--list-clauses", action="store_true", help="print the clauses, a line each")
    group.addoption("--list-implementations", action="store_true", help="print the implementations, a line each")
    group.addoption("--list-defects", action="store_true", help="print the catalogue of known mistakes, a line each")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | pytest.ExitCode | None:
    """Starts over with a path joined to its option, where it had misled pytest."""
    given = [str(argument) for argument in config.invocation_params.args]
    joined = list(_joined(given))
    if config.inipath is not None or joined == given:
        return None
    return pytest.main(joined, plugins=config.invocation_params.plugins)


def _joined(arguments: Sequence[str]) -> Iterator[str]:
    words = iter(arguments)
    for word in words:
        value = next(words, None) if word in ("--report", "--replay") else None
        yield word if value is None else f"{word}={value}"
