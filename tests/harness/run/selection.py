"""Selecting: the command line's options, and what they select."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import date
from difflib import get_close_matches
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import Path

import pytest
import torch

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin import ABSENT, BUILTIN, NAMED, ON_REQUEST
from attention_conformance.implementations.discovery.candidates import candidates, distinct
from attention_conformance.implementations.discovery.loading import TargetError
from attention_conformance.spec.clauses import load
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.clause_tests import Selection
from attention_conformance.tests.harness.judge.judge import TIERS
from attention_conformance.tests.harness.run.expected_failures import ExpectingError, expecting


class UsageError(ValueError):
    """An option that cannot be followed; the message is one line with the remedy."""


@dataclass(frozen=True)
class Options:
    """The options of one run, as given."""

    candidates: tuple[str, ...]
    implementations: tuple[str, ...]
    clauses: tuple[str, ...]
    dtypes: tuple[str, ...]
    conventions: tuple[str, ...]
    device: str
    tier: str
    report: Path | None
    replay: Path | None
    expected: Path | None
    propose: bool
    explain: tuple[str, ...]
    list_clauses: bool
    list_implementations: bool
    list_defects: bool

    @classmethod
    def of(cls, config: pytest.Config) -> Options:
        """The options as pytest parsed them."""

        def several(name: str) -> tuple[str, ...]:
            return tuple(config.getoption(name))

        folder, file = config.getoption("conformance_report"), config.getoption("replay")
        expected = config.getoption("expected_failures")
        return cls(
            candidates=several("candidate"),
            implementations=several("implementation"),
            clauses=several("clause"),
            dtypes=several("dtype"),
            conventions=several("convention"),
            device=config.getoption("device"),
            tier=config.getoption("tier"),
            report=None if folder is None else Path(folder),
            replay=None if file is None else Path(file),
            expected=None if expected is None else Path(expected),
            propose=config.getoption("propose_expected_failures"),
            explain=several("explain"),
            list_clauses=config.getoption("list_clauses"),
            list_implementations=config.getoption("list_implementations"),
            list_defects=config.getoption("list_defects"),
        )

    @property
    def all_builtin(self) -> bool:
        """Whether every built-in implementation is meant."""
        return not self.candidates and not self.implementations


def selection_of(options: Options) -> Selection:
    """What the options select.

    Raises:
        UsageError: a name that selects nothing, a device that is not there, a target that cannot be used.
    """
    require_known("--tier", (options.tier,), list(TIERS))
    require_known("--clause", options.clauses, list(load()))
    require_known("--dtype", options.dtypes, list(DTYPES))
    require_device("--device", options.device)
    if options.candidates:
        return _candidates(options)
    for option, given in _of_candidates(options).items():
        if given:
            raise UsageError(f"{option} describes a candidate: give --candidate TARGET too")
    return Selection(_builtin(options.implementations), options.clauses, options.dtypes)


def _of_candidates(options: Options) -> dict[str, bool]:
    return {
        "--convention": bool(options.conventions),
        "--expected-failures": options.expected is not None,
        "--propose-expected-failures": options.propose,
    }


def left_out() -> dict[str, str]:
    """The built-in implementations that no pattern selects, and why."""
    costly = {i.name: f"costly: --implementation {i.name} asks it" for i in ON_REQUEST}
    return costly | {name: f"cannot run here: {reason}" for name, reason in ABSENT.items()}


def settings_of(options: Options) -> dict[str, str]:
    """The conventions by key.

    Raises:
        UsageError: one is not of the form KEY=VALUE.
    """
    settings: dict[str, str] = {}
    for setting in options.conventions:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--convention {setting!r} is not of the form KEY=VALUE, such as empty-row=uniform")
        settings[key] = value
    return settings


@contextmanager
def hushed() -> Iterator[None]:
    """Drops what candidates print where they are called beside the clauses, whose output pytest keeps for failures."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


def _candidates(options: Options) -> Selection:
    settings = settings_of(options)
    try:
        targets = list(distinct(options.candidates).values())
        with hushed():
            found = candidates(options.candidates, settings, options.device)
        expected, notes = expecting(found, targets, options.expected, date.today())
        return Selection(expected, options.clauses, options.dtypes, notes)
    except KeyboardInterrupt:
        named = ", ".join(options.candidates)
        raise pytest.exit.Exception(f"interrupted while {named} was called for the first time", 2) from None
    except (TargetError, ExpectingError) as error:
        raise UsageError(str(error)) from error
    except ValueError as error:
        raise UsageError(f"--convention: {error}") from error


def _builtin(patterns: Sequence[str]) -> tuple[Implementation, ...]:
    """Those that a pattern matches; of the costly ones and the compositions, those that are named in full."""
    for name, reason in ABSENT.items():
        if name in patterns:
            raise UsageError(f"--implementation {name!r} cannot run here: {reason}")
    known = (*BUILTIN, *(i for i in (*ON_REQUEST, *NAMED) if i.name in patterns))
    require_known("--implementation", patterns, [i.name for i in known])
    return tuple(i for i in known if _matches(i.name, patterns))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def require_known(argument: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    """Checks that each pattern given for an argument or an option selects one of the names.

    Raises:
        UsageError: one selects nothing; the message has the nearest names.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern, names, 3, 0.4) or list(names)[:3]
            raise UsageError(f"{argument} {pattern!r} selects nothing; there are for example: {', '.join(near)}")


def require_device(argument: str, device: str) -> None:
    """Checks that torch can compute on a device.

    Raises:
        UsageError: it cannot; the message says why.
    """
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"{argument} {device!r} is not available here: {reason}") from error
