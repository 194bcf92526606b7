"""The options of the suite: pytest and the installed command take the same ones.

Neither this module nor the command line imports pytest: a worker starts before that, and meanwhile.
"""

from __future__ import annotations

import tomllib
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attention_conformance.implementations.worker.limits import CALL
from attention_conformance.implementations.worker.resources import size_of

if TYPE_CHECKING:
    import pytest

NAME = "attention-conformance"
"""Of the project, and of the plugin where it is installed."""


def _several(metavar: str, about: str) -> dict[str, Any]:
    return {"action": "append", "default": [], "metavar": metavar, "help": f"{about} (repeatable)"}


def _flag(about: str) -> dict[str, Any]:
    return {"action": "store_true", "help": about}


def _memory(text: str) -> int:
    try:
        return size_of(text)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from error


OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--candidate": _several("TARGET", "judge only this: FILE.py:NAME or package.module:NAME"),
    "--command": {
        **_several("COMMAND", "judge only the worker that this starts, such as 'node attention.mjs'"),
        "dest": "commands",
    },
    "--python": {"metavar": "PYTHON", "help": "load targets in its environment, such as ENV/bin/python"},
    "--convention": _several("KEY=VALUE", "the answer that the candidates claim where the field disagrees"),
    "--premise": _several("PREMISE", "what the candidates always do, such as causal or softcap=30"),
    "--claim": _several("FEATURE", "a feature that the candidates claim too, such as float-mask"),
    "--without": _several("FEATURE", "a feature that the candidates do not claim, or what a verdict is in part for"),
    "--implementation": _several("PATTERN", "judge only these built-in implementations, such as 'torch.*'"),
    "--clause": _several("PATTERN", "check only these clauses, such as 'masks.*'"),
    "--dtype": _several("NAME", "check only in these dtypes, such as float32"),
    "--device": {"default": "cpu", "help": "the torch device that candidates compute on (default: cpu)"},
    "--tier": {"default": "quick", "help": "how much is checked: quick (default), full or exhaustive"},
    "--fresh": _flag("draw the numbers of all cases anew, as the tiers full and exhaustive always do"),
    "--seed": {"type": int, "metavar": "N", "help": "draw them as the run that reported this seed did; 0: as stored"},
    "--shard": {"metavar": "K/N", "help": "check only part K of N parts that take about as long; see report-merge"},
    "--in-process": _flag("call the candidates in the judge's own process, for a debugger: nothing is isolated"),
    "--deadline": {"type": float, "metavar": "SECONDS", "help": f"for a small call of a candidate (default: {CALL:g})"},
    "--budget": {
        "type": float,
        "metavar": "SECONDS",
        "help": "check what detects most for its cost first, end in this time, and report what was left out",
    },
    "--memory": {
        "type": _memory,
        "metavar": "LIMIT",
        "help": "what a candidate may allocate, such as 8G (default: half of what is free)",
    },
    "--report": {"dest": "conformance_report", "metavar": "DIR", "help": "write report.json into DIR"},
    "--expected-failures": {
        "metavar": "FILE",
        "help": "known deviations of the candidates (default: expected_failures.toml in the folder of each)",
    },
    "--propose-expected-failures": _flag("print the entries of such a file for what fails now"),
    "--first-screen": _flag("print one screen, and check telling clauses first: what the command does with a target"),
    "--failing-first": {"metavar": "FILE", "help": "check first the clauses that FILE lists; then it lists what fails"},
    "--explain": _several("CLAUSE", "explain a clause, and judge nothing"),
    "--replay": {"metavar": "FAILURE.json", "help": "run again the case of a failure file that --report wrote"},
    "--list-clauses": _flag("print the clauses, a line each"),
    "--list-implementations": _flag("print the implementations, a line each"),
    "--list-defects": _flag("print the catalogue of known mistakes, a line each"),
}
"""By name, with the keywords of argparse."""
PATHS = ("--report", "--replay", "--expected-failures", "--failing-first")
"""Options whose value is a path. Before pytest knows any plugin, it takes a lone path for the place of the tests."""


def declare(parser: pytest.Parser) -> None:
    """Declares every option of the suite."""
    group = parser.getgroup(NAME)
    for name, keywords in OPTIONS.items():
        group.addoption(name, **keywords)


def on_the_suite(config: pytest.Config | None) -> bool:
    """Whether the settings are the suite's, or a given path or else the current folder is in a project of it."""
    if config is not None and (settings_found(config) or names_the_suite(config)):
        return True
    return _is_ours(_project(Path.cwd()))


def names_the_suite(config: pytest.Config) -> bool:
    """Whether the command line has a path in the suite."""
    return any(_is_in_ours(str(word)) for word in config.invocation_params.args)


def joined(given: pytest.Config.InvocationParams) -> pytest.Config.InvocationParams:
    """The same arguments with each path joined to its option: who reads them again takes it for no place of tests."""
    words: list[str] = []
    for word in map(str, given.args):
        if words and words[-1] in PATHS:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return replace(given, args=tuple(words))


def _is_in_ours(word: str) -> bool:
    place = Path(word.partition("::")[0])
    try:
        return not word.startswith("-") and place.exists() and _is_ours(_project(place.resolve()))
    except OSError:  # no name of a file
        return False


def _project(place: Path) -> Path:
    """The nearest settings of a project above a place, or the place where there are none."""
    projects = (file for folder in (place, *place.parents) if (file := folder / "pyproject.toml").is_file())
    return next(projects, place)


def settings_found(config: pytest.Config) -> bool:
    """Whether pytest has read the suite's own settings."""
    return config.inipath is not None and _is_ours(config.inipath)


def _is_ours(file: Path) -> bool:
    if file.name != "pyproject.toml":
        return False
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return False
    return isinstance(project, dict) and project.get("name") == NAME


def nearest(word: str) -> str:
    """The option of the suite that a mistyped one is nearest to; empty where none is near."""
    return next(iter(get_close_matches(word.partition("=")[0], list(OPTIONS), 1, 0.75)), "")
