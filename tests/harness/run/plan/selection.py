"""The options of the command line, and the implementations, clauses and dtypes that they select."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import date
from difflib import get_close_matches
from fnmatch import fnmatchcase
from io import StringIO
from pathlib import Path

import pytest

from attention_conformance.implementations.api.amended import Amendments
from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.discovery.candidates import candidates, distinct
from attention_conformance.implementations.discovery.targets.loading import TargetError
from attention_conformance.implementations.worker.elsewhere import unusable
from attention_conformance.implementations.worker.limits import CALL, LATEST
from attention_conformance.spec.clauses import load
from attention_conformance.spec.optional import optional
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.clause_tests import Selection, clause_tests
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.judge.tiers import TIERS, seeded, tier_of
from attention_conformance.tests.harness.run.plan.expected_failures import ExpectingError, expecting
from attention_conformance.tests.harness.run.plan.sharding import Shard
from attention_conformance.tests.harness.run.plan.unusable import loaded_or_error, require_usable
from attention_conformance.tests.report.wording import one_line

LONGEST_NAME = 100
"""Characters of a candidate's name that are recorded."""

torch = optional("torch")


class UsageError(ValueError):
    """An option that cannot be followed; the message is one line with the remedy."""


def settings_of(config: pytest.Config) -> RunSettings:
    """The options of a run as pytest parsed them.

    Raises:
        UsageError: a convention is not of the form KEY=VALUE.
    """

    def several(name: str) -> tuple[str, ...]:
        return tuple(config.getoption(name))

    return RunSettings(
        candidates=several("candidate"),
        commands=tuple(dict.fromkeys(several("commands"))),
        python=config.getoption("python") or "",
        implementations=several("implementation"),
        clauses=several("clause"),
        dtypes=expanded_dtypes(several("dtype")),
        conventions=dict(map(_convention, several("convention"))),
        amendments=Amendments(several("claim"), several("without"), several("premise")),
        device=config.getoption("device"),
        tier=_tier(config),
        report=path_of(config, "conformance_report"),
        expected=path_of(config, "expected_failures"),
        propose=config.getoption("propose_expected_failures"),
        isolated=not config.getoption("in_process"),
        deadline=CALL if config.getoption("deadline") is None else config.getoption("deadline"),
        memory=config.getoption("memory"),
        budget=_budget(config),
        shard=_shard(config.getoption("shard")),
        first_screen=config.getoption("first_screen"),
    )


def _budget(config: pytest.Config) -> float | None:
    seconds: float | None = config.getoption("budget")
    if seconds is not None:
        require_deadline("--budget", seconds)
    return seconds


def _tier(config: pytest.Config) -> str:
    """The tier with its seed, which is drawn once and passed on to the processes of -n."""
    option = config.option
    option.tier = seeded(option.tier, option.fresh, option.seed)
    tier: str = option.tier
    return tier


def _shard(given: str | None) -> str:
    try:
        return "" if given is None else str(Shard.parse(given))
    except ValueError as error:
        raise UsageError(f"--shard {error}") from None


def path_of(config: pytest.Config, name: str) -> Path | None:
    """The path that an option holds, if it was given."""
    given = config.getoption(name)
    return None if given is None else Path(given)


def _convention(setting: str) -> tuple[str, str]:
    key, equals, value = setting.partition("=")
    if not equals:
        raise UsageError(f"--convention {setting!r} is not of the form KEY=VALUE, such as empty-row=uniform")
    return key, value


def selection_of(settings: RunSettings) -> Selection:
    """What a run is to check.

    Raises:
        UsageError: a name that selects nothing, a device that is not there, a target that cannot be used.
    """
    require_tier("--tier", settings.tier)
    require_known("--clause", settings.clauses, list(load()))
    require_known("--dtype", settings.dtypes, list(DTYPES))
    require_device("--device", settings.device)
    require_process(settings)
    if settings.has_candidates:
        return _candidates(settings)
    for option, given in _of_candidates(settings).items():
        if given:
            raise UsageError(f"{option} describes a candidate: give --candidate TARGET or --command too")
    return Selection(_builtin(settings.implementations), settings.clauses, settings.dtypes)


def require_process(settings: RunSettings) -> None:
    """Checks that candidates can be started where they are to be, and how long they may take.

    Raises:
        UsageError: they cannot, or the time is none.
    """
    require_deadline("--deadline", settings.deadline)
    if settings.commands and not settings.isolated:
        raise UsageError("--command starts a process, and --in-process none: give one of them")
    if not settings.python:
        return
    if not settings.candidates or not settings.isolated:
        raise UsageError("--python is where targets are loaded: give --candidate TARGET too, without --in-process")
    if reason := unusable(settings.python):
        raise UsageError(f"--python {settings.python!r}: {reason}; it needs Python 3.11 and NumPy, and nothing of ours")


def _of_candidates(settings: RunSettings) -> dict[str, bool]:
    return {
        "--convention": bool(settings.conventions),
        "--premise": bool(settings.amendments.premises),
        "--claim": bool(settings.amendments.claim),
        "--without": bool(settings.amendments.without),
        "--expected-failures": settings.expected is not None,
        "--propose-expected-failures": settings.propose,
    }


def left_out() -> dict[str, str]:
    """The built-in implementations that no pattern selects, and why."""
    from attention_conformance.implementations.builtin.catalogue import ABSENT, ON_REQUEST

    costly = {i.name: f"costly: --implementation {i.name} checks it" for i in ON_REQUEST}
    return costly | {name: f"cannot run here: {reason}" for name, reason in ABSENT.items()}


@contextmanager
def hushed() -> Iterator[None]:
    """Drops what candidates print outside of clauses, whose output pytest keeps for failures."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


def _candidates(settings: RunSettings) -> Selection:
    clause_tests()  # imported here, while the nursery has its own imports to do
    try:
        targets = [*distinct(settings.candidates).values(), *("" for _ in settings.commands)]
        with hushed():
            commanded = tuple(map(settings.commanded, settings.commands))
            load_each = loaded_or_error(settings.loader(), targets)
            given = (*candidates(settings.candidates, load_each), *commanded)
        require_usable(given)
        loaded = tuple(
            settings.amendments.of(replace(each, name=one_line(each.name, LONGEST_NAME) or "nameless"))
            for each in given
        )
        expected, notes = expecting(loaded, targets, settings.expected, date.today())
        dtypes, other = answered_dtypes(expected, settings.dtypes)
        selection = Selection(expected, settings.clauses, dtypes, (*notes, *other))
    except KeyboardInterrupt:
        named = ", ".join((*settings.candidates, *settings.commands))
        raise pytest.exit.Exception(f"interrupted while {named} was called for the first time", 2) from None
    except (TargetError, ExpectingError) as error:
        raise UsageError(str(error)) from error
    except ValueError as error:
        raise UsageError(f"--convention, --premise, --claim or --without: {error}") from error
    require_different(loaded)
    return selection


def answered_dtypes(
    implementations: Sequence[Implementation], dtypes: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The dtypes to check, and a line on them: the widest claimed one where none of those that are given is claimed."""
    claimed = {dtype for each in implementations for dtype in each.claims.dtypes}
    other = tuple(dtype for dtype in DTYPES if dtype in claimed)[:1]
    if not dtypes or not other or claimed & {*dtypes}:
        return dtypes, ()
    names = " and ".join(each.name for each in implementations)
    return other, (f"checked in {other[0]}: {names} answers in no {' or '.join(dtypes)}",)


def require_different(loaded: Sequence[Implementation]) -> None:
    """Checks that candidates have different names.

    Raises:
        UsageError: two have the same.
    """
    names = [each.name for each in loaded]
    if again := [name for number, name in enumerate(names) if name in names[:number]]:
        raise UsageError(f"two candidates have the name {again[0]!r}: let each worker give a name of its own")


def _builtin(patterns: Sequence[str]) -> tuple[Implementation, ...]:
    """Those that a pattern matches; of the costly ones and the compositions, those that are named in full."""
    # Here, as they import torch, for which the judge of a candidate does not wait.
    from attention_conformance.implementations.builtin.catalogue import ABSENT, BUILTIN, NAMED, ON_REQUEST

    for name, reason in ABSENT.items():
        if name in patterns:
            raise UsageError(f"--implementation {name!r} cannot run here: {reason}")
    known = (*BUILTIN, *(i for i in (*ON_REQUEST, *NAMED) if i.name in patterns))
    require_known("--implementation", patterns, [i.name for i in known])
    return tuple(i for i in known if _matches(i.name, patterns))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def expanded_dtypes(patterns: Sequence[str]) -> tuple[str, ...]:
    """The dtypes that patterns name, widest first; then the patterns that name none, for error messages."""
    matched = [dtype for dtype in DTYPES if any(fnmatchcase(dtype, pattern) for pattern in patterns)]
    return (*matched, *(p for p in patterns if not any(fnmatchcase(dtype, p) for dtype in DTYPES)))


def require_known(argument: str, patterns: Sequence[str], names: Sequence[str]) -> None:
    """Checks that each pattern given for an argument or an option selects one of the names.

    Raises:
        UsageError: one selects nothing; the message has the nearest names.
    """
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern, names, 3, 0.4) or list(names)[:3]
            raise UsageError(f"{argument} {pattern!r} selects nothing; there are for example: {', '.join(near)}")


def require_tier(argument: str, text: str) -> None:
    """Checks that a tier exists, and its seed can be used.

    Raises:
        UsageError: it does not, or cannot.
    """
    require_known(argument, (text.partition(":")[0],), list(TIERS))
    try:
        tier_of(text)
    except ValueError as error:
        raise UsageError(f"{argument} {error}") from None


def require_deadline(argument: str, seconds: float) -> None:
    """Checks that a deadline is a time that the system can wait for.

    Raises:
        UsageError: it is not.
    """
    if not 0 < seconds <= LATEST:
        raise UsageError(f"{argument} {seconds:g} is no time: give seconds, more than 0 and at most {LATEST:g}")


def require_device(argument: str, device: str) -> None:
    """Checks that torch can compute on a device, and that results come back from it.

    Raises:
        UsageError: it cannot; the message says why.
    """
    if device == "cpu":
        return
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(f"{argument} {device!r} is not available here: {reason}") from error
