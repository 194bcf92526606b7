"""Command lines that run a clause or a recorded failure again, in the form in which this run was started."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join

from attention_conformance.implementations.worker.limits import CALL
from attention_conformance.tests.harness.judge.settings import RunSettings

INSTALLED = "attention-conformance"
"""The installed command, which runs the suite without a clone."""
PACKAGE = Path(__file__).resolve().parents[4]
MAIN = PACKAGE / "__main__.py"
"""What `python -m attention_conformance` runs."""


def again(settings: RunSettings, targets: Mapping[str, str], implementation: str, clause: str, dtype: str) -> str:
    """The command that runs one clause again: on one candidate, where there are several."""
    return _with(settings, targets, implementation, options_of(settings, ("--clause", clause, "--dtype", dtype)))


def checked_with(settings: RunSettings, targets: Mapping[str, str], implementation: str, options: Sequence[str]) -> str:
    """The command that checks the same of an implementation with some more claims."""
    clauses = [word for clause in settings.clauses for word in ("--clause", clause)]
    dtypes = [word for dtype in settings.dtypes for word in ("--dtype", dtype)]
    return _with(settings, targets, implementation, options_of(settings, (*options, *clauses, *dtypes)))


def _with(settings: RunSettings, targets: Mapping[str, str], implementation: str, rest: Sequence[str]) -> str:
    if settings.commands and implementation not in targets:
        return checking((), "", rest, installed_command(), settings.commands)
    own = [targets[implementation]] if len(settings.candidates) > 1 or settings.commands else settings.candidates
    return checking(own, implementation, rest, installed_command())


def options_of(settings: RunSettings, selected: Sequence[str]) -> list[str]:
    """The options that judge as the run did, with these that select clauses and dtypes, or claim more."""
    conventions = [w for key, value in settings.conventions.items() for w in ("--convention", f"{key}={value}")]
    claims = settings.amendments.options()
    expected = [] if settings.expected is None else ["--expected-failures", str(settings.expected)]
    tier = [] if settings.tier == "quick" else ["--tier", settings.tier]
    device = [] if settings.device == "cpu" else ["--device", settings.device]
    process = process_options(settings)
    return [*process, *conventions, *claims, *expected, *selected, *tier, *device]


def process_options(settings: RunSettings) -> list[str]:
    """The options of the process of a candidate that were given."""
    given = {
        "--python": settings.python,
        "--deadline": "" if settings.deadline == CALL else f"{settings.deadline:g}",
        "--memory": "" if settings.memory is None else str(settings.memory),
    }
    return [word for option, value in given.items() if value for word in (option, value)]


def checking(
    targets: Sequence[str], implementation: str, rest: Sequence[str], command: str, commands: Sequence[str] = ()
) -> str:
    """The command that checks candidates, or else a built-in implementation, with some more options.

    `command` is the installed one; pytest where it is empty. `commands` start more candidates.
    """
    started = [word for each in commands for word in ("--command", each)]
    if command:
        named = [*targets, *started] or ["--implementation", implementation]
        return f"{command} check {join([*named, *rest])}"
    named = [word for target in targets for word in ("--candidate", target)] + started
    return f"{_pytest()} {join([*(named or ['--implementation', implementation]), *rest])}"


def replaying(path: Path, settings: RunSettings, started_by: str = "") -> str:
    """The command that runs the case of a failure file again; `started_by` is what starts a candidate of --command."""
    words = join([str(path), *(["--command", started_by] if started_by else []), *process_options(settings)])
    return f"{command} replay {words}" if (command := installed_command()) else f"{_pytest()} --replay {words}"


def explaining(clause: str) -> str:
    """The command that explains a clause."""
    named = join([clause])
    return f"{command} explain {named}" if (command := installed_command()) else f"{_pytest()} --explain {named}"


def installed_command() -> str:
    """How the installed command was called; empty where it was not."""
    program = Path(sys.argv[0])
    if program.stem == INSTALLED:
        on_path = shutil.which(INSTALLED)
        return INSTALLED if on_path and Path(on_path).resolve() == program.resolve() else join([str(program)])
    if program.resolve() == MAIN:
        return f"{join([_from_here(sys.executable)])} -m attention_conformance"
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
