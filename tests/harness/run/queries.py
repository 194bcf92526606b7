"""Answering: options that ask something about the suite, or repeat one recorded failure, and judge nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from attention_conformance.implementations.builtin import BUILTIN, ON_REQUEST
from attention_conformance.implementations.defects import catalogue
from attention_conformance.spec.clauses import load
from attention_conformance.tests.harness.explain.replay import ReplayError, read, replay
from attention_conformance.tests.harness.run.command_lines import explaining
from attention_conformance.tests.harness.run.selection import (
    Options,
    UsageError,
    left_out,
    require_device,
    require_known,
    selection_of,
)


def answered(options: Options) -> int | None:
    """Prints the answer and gives the exit status; None where the options ask for a run.

    Raises:
        UsageError: an option cannot be followed.
    """
    if options.replay is not None:
        return _replayed(options.replay)
    questions = (
        (bool(options.explain), _explained),
        (options.list_clauses, _clauses),
        (options.list_implementations, _implementations),
        (options.list_defects, _defects),
    )
    for asked, answer in questions:
        if asked:
            print("\n".join(answer(options)))
            return 0
    return None


def _explained(options: Options) -> Iterator[str]:
    from attention_conformance.tests.harness.explain.clause_page import (
        explanation,  # it reads equations, for which a run has no time
    )

    require_known("--explain", options.explain, list(load()))
    for clause in load().values():
        if any(fnmatchcase(clause.id, pattern) for pattern in options.explain):
            yield from explanation(clause, (*BUILTIN, *ON_REQUEST))
            yield ""


def _clauses(options: Options) -> Iterator[str]:
    for clause in load().values():
        status = "in tests/benchmarks" if clause.measured else ", ".join(sorted(clause.features))
        yield f"{clause.id:32} {clause.level:6} {status:28} {clause.statement}"


def _implementations(options: Options) -> Iterator[str]:
    for i in selection_of(options).implementations:
        yield f"{i.name:24} {i.claims.scope:6} {len(i.claims.features):2} features  {i.about}"
    for name, reason in left_out().items() if options.all_builtin else ():
        yield f"{name:24} not among them: {reason}"


def _defects(options: Options) -> Iterator[str]:
    for defect in catalogue():
        yield f"{defect.id:40} {defect.clauses[0]:28} {defect.severity:10} {defect.does}"


def _replayed(path: Path) -> int:
    try:
        failure = read(path)
        require_device("--device", failure.device)
        holds, told = replay(failure)
    except (ReplayError, UsageError) as error:
        raise UsageError(f"--replay {path}: {error}") from None
    print("\n".join(told))
    if not holds:
        print(f"next: {explaining(failure.clause)}  says what is asked, and why")
    return 0 if holds else 1
