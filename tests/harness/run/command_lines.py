"""Calling: what to type to ask a clause, or a recorded failure, again, in the words by which this run was started."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import join

INSTALLED = "attention-conformance"
"""The installed command, which runs the suite without a clone."""
PACKAGES = ("attention_conformance", "command")
"""Where its `__main__` lies: installed, and in the clone."""


def asking(targets: Sequence[str], implementation: str, rest: Sequence[str]) -> str:
    """The command that asks candidates, or else a built-in implementation, with some more options."""
    if command := _installed():
        named = list(targets) or ["--implementation", implementation]
        return f"{command} check {join([*named, *rest])}"
    named = [word for target in targets for word in ("--candidate", target)] or ["--implementation", implementation]
    return f"{_pytest()} {join([*named, *rest])}"


def replaying(path: Path) -> str:
    """The command that asks again what a failure file holds."""
    file = join([str(path)])
    return f"{command} replay {file}" if (command := _installed()) else f"{_pytest()} --replay {file}"


def explaining(clause: str) -> str:
    """The command that says all that is known of a clause."""
    named = join([clause])
    return f"{command} explain {named}" if (command := _installed()) else f"{_pytest()} --explain {named}"


def _installed() -> str:
    """How the installed command was called; empty where it was not."""
    program = Path(sys.argv[0])
    if program.stem == INSTALLED:
        found = shutil.which(INSTALLED)
        return INSTALLED if found and Path(found).resolve() == program.resolve() else join([str(program)])
    if program.name == "__main__.py" and program.parent.name in PACKAGES:
        return f"{join([_from_here(sys.executable)])} -m {PACKAGES[0]}"
    return ""


def _pytest() -> str:
    """How pytest is called: by its name if the shell finds it there, else through its Python."""
    own = Path(sys.executable).parent
    if shutil.which("pytest", path=str(own)) == shutil.which("pytest"):
        return "pytest"
    return f"{join([_from_here(sys.executable)])} -m pytest"


def _from_here(program: str) -> str:
    path = Path(program)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
