"""The command `audit`: a table of the findings on a target, and a ready adapter file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from attention_conformance.implementations.discovery.findings import table
from attention_conformance.implementations.discovery.loading import Target, TargetError
from attention_conformance.implementations.discovery.probe import Oracle
from attention_conformance.implementations.discovery.process import LostError, audit_apart
from attention_conformance.reference.encodings import alibi_slopes, sinusoids
from attention_conformance.reference.expected import solve

UNUSABLE = 4
INSTALLED = Path(sys.argv[0]).stem == "attention-conformance"
"""Whether the installed command runs this, without a clone."""
ORACLE = Oracle(solve, sinusoids, alibi_slopes)
ABOUT = """\
Detects the conventions of an unknown attention callable, by tiny probes: its framework, the order of its arguments,
their layout, what its masks mean, where its causal triangle starts, what it answers for a row without keys, and so on.
TARGET is FILE.py:NAME or package.module:NAME: a function of query, key and value, a module class, or an
Implementation, whose own claims are not used. Exit status 0, or 4 where TARGET cannot be used."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, and writes the adapter to the given file."""
    options = _parser().parse_args(arguments)
    try:
        if options.write is not None:
            _check_file(options.write, options.force)
        print(_audited(options.target, options.device, options.seconds, options.write))
    except (TargetError, LostError) as error:
        message = str(error)
        message = message if options.target in message else f"{options.target}: {message}"
        print(f"audit: {message}", file=sys.stderr)
        return UNUSABLE
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "attention-conformance audit", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--write", metavar="FILE", type=Path, help="write an adapter whose claims are the findings")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument("--device", default="cpu", help="where torch and JAX compute")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to wait for each answer (30)")
    return parser


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
    judge = "attention-conformance check" if INSTALLED else "python -m pytest --candidate"
    return f"{table(findings)}\n\nwritten: {file}; judge it with: {judge} {file}:adapter"


if __name__ == "__main__":
    sys.exit(main())
