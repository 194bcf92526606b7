"""The command line's options, installed as a plugin of its own so that pytest knows them from the start.

Where pytest does not run on the suite, the plugin adds nothing and does nothing: it is then installed beside tests that
are none of its business.

Before it knows any plugin, pytest takes a lone argument that names a folder for the place of the tests. `--report DIR`
with a folder that exists would so hide the suite's configuration; it is then read once more as `--report=DIR`. The same
goes for other options that take a path.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import pytest

NAME = "attention-conformance"
"""Of the project, and of the plugin where it is installed."""


def _several(metavar: str, about: str) -> dict[str, Any]:
    return {"action": "append", "default": [], "metavar": metavar, "help": f"{about} (repeatable)"}


def _flag(about: str) -> dict[str, Any]:
    return {"action": "store_true", "help": about}


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--candidate": _several("TARGET", "judge only this: FILE.py:NAME or package.module:NAME"),
    "--convention": _several("KEY=VALUE", "a named alternative that the candidates follow"),
    "--implementation": _several("PATTERN", "judge only these built-in implementations, such as 'torch.*'"),
    "--clause": _several("PATTERN", "ask only these clauses, such as 'masks.*'"),
    "--dtype": _several("NAME", "ask only in these dtypes, such as float32"),
    "--device": {"default": "cpu", "help": "the torch device that candidates compute on (default: cpu)"},
    "--tier": {"default": "quick", "help": "how much is asked: quick (default), full or exhaustive"},
    "--report": {"dest": "conformance_report", "metavar": "DIR", "help": "write report.json into DIR"},
    "--expected-failures": {
        "metavar": "FILE",
        "help": "deviations of the candidates that are known (default: expected_failures.toml beside each)",
    },
    "--propose-expected-failures": _flag("print the entries of such a file for what fails now"),
    "--explain": _several("CLAUSE", "print all that is known of a clause, and judge nothing"),
    "--replay": {"metavar": "FAILURE.json", "help": "ask again what a failure file of --report holds"},
    "--list-clauses": _flag("print the clauses, a line each"),
    "--list-implementations": _flag("print the implementations, a line each"),
    "--list-defects": _flag("print the catalogue of known mistakes, a line each"),
}
"""What pytest and the installed command take, with the keywords by which both are told of it."""
PATHS = ("--report", "--replay", "--expected-failures")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declares every option, where pytest runs on the suite."""
    if on_the_suite(pluginmanager.get_plugin("pytestconfig")):
        declare(parser)


def declare(parser: pytest.Parser) -> None:
    """Declares every option of the suite."""
    group = parser.getgroup(NAME)
    for name, keywords in OPTIONS.items():
        group.addoption(name, **keywords)


def on_the_suite(config: pytest.Config | None) -> bool:
    """Whether the configuration is the suite's, or else the project around the current folder is."""
    if config is not None and config.inipath is not None and _is_ours(config.inipath):
        return True
    here = Path.cwd()
    projects = (file for folder in (here, *here.parents) if (file := folder / "pyproject.toml").is_file())
    return _is_ours(next(projects, here))


def _is_ours(file: Path) -> bool:
    if file.name != "pyproject.toml":
        return False
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return False
    return isinstance(project, dict) and project.get("name") == NAME


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | pytest.ExitCode | None:
    """Starts over with a path joined to its option, where it had misled pytest."""
    given = [str(argument) for argument in config.invocation_params.args]
    joined = list(_joined(given))
    misled = config.inipath is None or not _is_ours(config.inipath)
    if joined == given or not misled or not hasattr(config.option, "conformance_report"):
        return None
    return pytest.main(joined, plugins=config.invocation_params.plugins)


def _joined(arguments: Sequence[str]) -> Iterator[str]:
    words = iter(arguments)
    for word in words:
        value = next(words, None) if word in PATHS else None
        yield word if value is None else f"{word}={value}"


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Iterator[None]:
    """Tells of a mistyped option which one is meant, once every option is known."""
    yield
    if hasattr(early_config.known_args_namespace, "conformance_report"):
        _, unknown = parser.parse_known_and_unknown_args(args)
        for word in unknown:
            if near := nearest(word):
                raise pytest.UsageError(f"there is no option {word.partition('=')[0]}; did you mean {near}?")


def nearest(word: str) -> str:
    """The option of the suite that a mistyped one is nearest to; empty where none is near."""
    return next(iter(get_close_matches(word.partition("=")[0], list(OPTIONS), 1, 0.75)), "")
