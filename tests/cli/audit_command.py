"""The command `audit`: a table of the findings on a target, and a ready adapter file."""

from __future__ import annotations

import sys
from pathlib import Path

from attention_conformance.implementations.discovery.auditor.audit import LostError, audit_apart
from attention_conformance.implementations.discovery.auditor.findings import table
from attention_conformance.implementations.discovery.auditor.skeleton import SkeletonError
from attention_conformance.implementations.discovery.probe import Oracle
from attention_conformance.implementations.discovery.targets.loading import Target, TargetError
from attention_conformance.reference.encodings import alibi_slopes, sinusoids
from attention_conformance.reference.expected import solve
from attention_conformance.tests.harness.run.exit_status import ExitStatus

ORACLE = Oracle(solve, sinusoids, alibi_slopes)


def audit(
    target: str, write: Path | None = None, force: bool = False, device: str = "cpu", seconds: float = 30.0
) -> int:
    """Prints the table, and writes the adapter to the given file; the exit status is 4 for an unusable target."""
    try:
        if write is not None:
            _check_file(write, force)
        print(_audited(target, device, seconds, write))
    except (TargetError, LostError) as error:
        message = str(error)
        print(f"audit: {message if target in message else f'{target}: {message}'}", file=sys.stderr)
        if write is not None and isinstance(error, SkeletonError) and error.skeleton:
            write.write_text(error.skeleton)
            print(f"written: {write}, a skeleton: complete its TODO, and {_judge(write)}", file=sys.stderr)
        return ExitStatus.UNUSABLE
    return ExitStatus.CONFORMS


def _check_file(file: Path, force: bool) -> None:
    """Refuses a file before anything is probed.

    Raises:
        TargetError: it exists already, or cannot be written.
    """
    if file.suffix != ".py":
        raise TargetError(f"--write {file}: an adapter is a Python file: give a name that ends in .py")
    if not file.parent.is_dir():
        raise TargetError(f"--write {file}: there is no folder {str(file.parent)!r}: make it, or give another")
    if file.exists() and not force:
        raise TargetError(f"--write {file}: it exists already: give another name, or --force to overwrite it")


def _audited(target: str, device: str, seconds: float, file: Path | None) -> str:
    """The table as text; the adapter goes to the file."""
    Target.parse(target)
    findings, text = audit_apart(target, ORACLE, device, seconds, None if file is None else file.resolve().parent)
    if file is None:
        return table(findings)
    file.write_text(text)
    return f"{table(findings)}\n\nwritten: {file}; {_judge(file)}"


def _judge(file: Path) -> str:
    return f"judge it with: attention-conformance check {file}:adapter"
