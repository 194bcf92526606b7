"""The auditor's command line: a table of what a target was found to be, and a ready adapter file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from attention_conformance.implementations.discovery.audit.findings import Finding, table
from attention_conformance.implementations.discovery.audit.serving import Child, LostError, lost
from attention_conformance.implementations.discovery.loading import Target, TargetError

UNUSABLE = 4
INSTALLED = Path(sys.argv[0]).stem == "attention-conformance"
"""Whether the installed command runs this, without a clone."""
ABOUT = """\
Finds out what an unknown attention callable is, by tiny probes: its framework, the order of its arguments, their
layout, what its masks mean, where its causal triangle starts, what it answers for a row without keys, and so on.
TARGET is FILE.py:NAME or package.module:NAME: a function of query, key and value, a module class, or an
Implementation, whose own claims are not looked at. Exit status 0, or 4 where TARGET cannot be used."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, and writes the adapter if one is wanted."""
    asked = _parser().parse_args(arguments)
    try:
        if asked.write is not None:
            _check_file(asked.write, asked.force)
        print(audited(asked.target, asked.device, asked.seconds, asked.write))
    except (TargetError, LostError) as error:
        print(f"audit: {_told(asked.target, str(error))}", file=sys.stderr)
        return UNUSABLE
    return 0


def _told(target: str, message: str) -> str:
    return message if target in message else f"{target}: {message}"


def _parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m attention_conformance.implementations.discovery.audit", description=ABOUT, formatter_class=form
    )
    parser.add_argument("target", metavar="TARGET")
    parser.add_argument("--write", metavar="FILE", type=Path, help="write an adapter whose claims are the findings")
    parser.add_argument("--force", action="store_true", help="overwrite FILE")
    parser.add_argument("--device", default="cpu", help="where torch and JAX compute")
    parser.add_argument("--seconds", type=float, default=30.0, help="so long is waited for each answer (30)")
    return parser


def _check_file(file: Path, force: bool) -> None:
    """Refuses a file before anything is asked.

    Raises:
        TargetError: it is there already, or cannot be.
    """
    if file.suffix != ".py":
        raise TargetError(f"--write {file}: an adapter is a Python file: give a name that ends in .py")
    if not file.parent.is_dir():
        raise TargetError(f"--write {file}: there is no folder {str(file.parent)!r}: make it, or give another")
    if file.exists() and not force:
        raise TargetError(f"--write {file}: it is there already: give another name, or --force to overwrite it")


def audited(target: str, device: str, seconds: float, file: Path | None = None) -> str:
    """The table as text; the adapter goes to the file.

    Raises:
        TargetError: the target cannot be used.
        LostError: it ended the process, or did not answer, before anything could be asked.
    """
    from attention_conformance.implementations.discovery.audit.probes import NAMES

    Target.parse(target)
    with Child(target, device, seconds) as child:
        found = child.opened()
        for probe in NAMES:
            found += _asked(child, probe, found)
        found = child.ask("", found)
        if file is None:
            return table(found)
        file.write_text(child.ask("", found, str(file.resolve().parent)))
    judge = "attention-conformance check" if INSTALLED else "python -m pytest --candidate"
    return f"{table(found)}\n\nwritten: {file}; judge it with: {judge} {file}:adapter"


def _asked(child: Child, probe: str, found: Sequence[Finding]) -> list[Finding]:
    try:
        answer: list[Finding] = child.ask(probe, found)
    except LostError as error:
        child.opened()
        return [lost(probe, error)]
    return answer


if __name__ == "__main__":
    sys.exit(main())
