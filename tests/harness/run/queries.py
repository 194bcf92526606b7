"""Queries: options that print something about the suite, or run one recorded failure again, and judge nothing else."""

from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from attention_conformance.implementations.defects import catalogue
from attention_conformance.spec.clauses import load
from attention_conformance.tests.harness.explain.replay import ReplayError, read, replay
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.plan.selection import (
    UsageError,
    left_out,
    path_of,
    require_device,
    require_known,
    require_process,
    selection_of,
    settings_of,
)
from attention_conformance.tests.harness.run.screen.command_lines import explaining


def answered(config: pytest.Config) -> int | None:
    """Prints the answer and returns the exit status; None where the options start a run.

    Raises:
        UsageError: an option cannot be used.
    """
    if (path := path_of(config, "replay")) is not None:
        return _replayed(path, settings_of(config))
    queries = {
        "explain": _explained,
        "list_clauses": _clauses,
        "list_implementations": _implementations,
        "list_defects": _defects,
    }
    for option, answer in queries.items():
        if config.getoption(option):
            print("\n".join(answer(config)))
            return 0
    return None


def _explained(config: pytest.Config) -> Iterator[str]:
    # They read equations and import torch, for which a run has no time.
    from attention_conformance.implementations.builtin.catalogue import BUILTIN, ON_REQUEST
    from attention_conformance.tests.harness.explain.clause_page import explanation

    patterns = config.getoption("explain")
    require_known("--explain", patterns, list(load()))
    for clause in load().values():
        if any(fnmatchcase(clause.id, pattern) for pattern in patterns):
            yield from explanation(clause, (*BUILTIN, *ON_REQUEST))
            yield ""


def _clauses(config: pytest.Config) -> Iterator[str]:
    for clause in load().values():
        status = "in tests/benchmarks" if clause.measured else ", ".join(sorted(clause.features))
        yield f"{clause.id:32} {clause.level:6} {status:28} {clause.statement}"


def _implementations(config: pytest.Config) -> Iterator[str]:
    settings = settings_of(config)
    for i in selection_of(settings).implementations:
        yield f"{i.name:24} {i.claims.scope:6} {len(i.claims.features):2} features  {i.about}"
    for name, reason in left_out().items() if settings.all_builtin else ():
        yield f"{name:24} not among them: {reason}"


def _defects(config: pytest.Config) -> Iterator[str]:
    for defect in catalogue():
        yield f"{defect.id:40} {defect.clauses[0]:28} {defect.severity:10} {defect.text.does}"


def _replayed(path: Path, given: RunSettings) -> int:
    try:
        failure = read(path)
        require_device("--device", failure.device)
        require_process(replace(given, candidates=(failure.target,) if failure.target else ()))
        holds, text = replay(failure, given)
    except (ReplayError, UsageError) as error:
        raise UsageError(f"--replay {path}: {error}") from None
    print("\n".join(text))
    if holds:
        return ExitStatus.CONFORMS
    print(f"next: {explaining(failure.clause)}  explains the clause")
    return ExitStatus.FAILS
