"""The command line of `attention-conformance`: its commands, and the part of the suite that runs each."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from attention_conformance.tests.cli import launch
from attention_conformance.tests.cli import watch as watching
from attention_conformance.tests.harness.run.exit_status import ExitStatus
from attention_conformance.tests.harness.run.options import NAME, OPTIONS

ABOUT = "Reports whether an attention implementation is right, and which mistake it makes if not."
TARGET = {"metavar": "TARGET", "help": "FILE.py:NAME or package.module:NAME"}
EXPECTED = ("--expected-failures", "--propose-expected-failures")
PROCESS_OPTIONS = ("--command", "--python", "--deadline", "--memory", "--in-process")
CHECK_OPTIONS = (
    *PROCESS_OPTIONS,
    "--convention",
    "--premise",
    "--claim",
    "--without",
    "--clause",
    "--dtype",
    "--device",
    "--tier",
    "--fresh",
    "--seed",
    "--budget",
    "--shard",
    "--report",
    *EXPECTED,
    "--implementation",
)
KINDS = ("clauses", "implementations", "defects")


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        run: returns the exit status; takes the arguments of the command, and those for pytest.
        options: options of pytest that it passes on.
        arguments: its own, with the keywords of argparse.
    """

    about: str
    run: Callable[[argparse.Namespace, list[str]], int]
    options: tuple[str, ...] = ()
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def takes(self) -> Mapping[str, Mapping[str, Any]]:
        """All options and arguments."""
        return {**self.arguments, **{option: OPTIONS[option] for option in self.options}}


class Parser(argparse.ArgumentParser):
    """A parser whose errors end with the exit status for unusable input."""

    def error(self, message: str) -> NoReturn:
        """Prints one line, and where to read more."""
        self.exit(ExitStatus.UNUSABLE, f"{self.prog}: {message}\n{self.prog} --help lists what can be given\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its `ExitStatus`."""
    given, rest = read(sys.argv[1:] if arguments is None else arguments)
    try:
        return COMMANDS[given.command].run(given, rest)
    except BrokenPipeError:  # what reads the output, such as `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.INTERRUPTED
    except Exception:
        traceback.print_exc()
        print("next: this is an error of the suite: report it, with these lines", file=sys.stderr)
        return ExitStatus.SUITE_ERROR


def read(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The parsed command line, and the part of it for pytest. One that cannot be read ends the program."""
    at = list(words).index("--") if "--" in words else len(words)
    own, rest = list(words[:at]), list(words[at + 1 :])
    parser, below = _parsers()
    if own and own[0] not in COMMANDS and not own[0].startswith("-"):
        parser.error(f"there is no command {own[0]!r}{_suggestion(own[0], COMMANDS)}")
    given, unknown = parser.parse_known_args(own)
    if unknown:
        suggestion = _suggestion(unknown[0], COMMANDS[given.command].takes)
        below[given.command].error(f"cannot read {unknown[0]!r}{suggestion}")
    return given, rest


def _suggestion(word: str, names: Iterable[str]) -> str:
    near = get_close_matches(word.partition("=")[0], list(names), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _parsers() -> tuple[Parser, dict[str, Parser]]:
    """The parser, and those of its commands."""
    parser = Parser(prog=NAME, description=ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{NAME} {version(NAME)}")
    below = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parsers = {}
    for name, command in COMMANDS.items():
        end = "Words after a lone -- are passed to pytest." if command.options else None
        parsers[name] = below.add_parser(
            name, help=command.about, description=command.about, epilog=end, allow_abbrev=False
        )
        for argument, keywords in command.takes.items():
            parsers[name].add_argument(argument, **keywords)
    return parser, parsers


def _passed(given: argparse.Namespace, options: Iterable[str]) -> Iterator[str]:
    """The given options in pytest's form, each joined to its value."""
    for option in options:
        value = getattr(given, OPTIONS.get(option, {}).get("dest", option.strip("-").replace("-", "_")))
        if value is True:
            yield option
        elif value or type(value) is float:  # a number may be 0
            yield from (f"{option}={each}" for each in (value if isinstance(value, list) else [value]))


def _check(given: argparse.Namespace, rest: list[str]) -> int:
    candidates = [f"--candidate={target}" for target in given.target]
    isolated = bool(candidates) and not given.in_process and not given.python
    options = [*candidates, *_passed(given, CHECK_OPTIONS), *_printing(given), *rest]
    if not given.watch:
        return launch.judge(options, isolated)
    try:
        files = watching.files_of(given.target)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return ExitStatus.UNUSABLE
    with TemporaryDirectory() as folder, launch.alone(isolated):
        again = [*options, f"--failing-first={Path(folder) / 'failed'}"]
        return watching.watch(files, lambda: launch.judge(again, isolated))


def _printing(given: argparse.Namespace) -> Iterator[str]:
    """How much is printed: a screen for a single candidate, unless -v wants everything."""
    single = len(given.target) + len(given.commands or ()) == 1
    if single and not given.verbose:
        yield "--first-screen"
    if given.exitfirst:
        yield "--exitfirst"


def _replay(given: argparse.Namespace, rest: list[str]) -> int:
    return launch.judge([f"--replay={given.file}", *_passed(given, PROCESS_OPTIONS), *rest])


def _list(given: argparse.Namespace, rest: list[str]) -> int:
    return launch.judge([f"--list-{given.what}", *rest])


def _explain(given: argparse.Namespace, rest: list[str]) -> int:
    return launch.judge([*(f"--explain={clause}" for clause in given.clause), *rest])


def _audit(given: argparse.Namespace, rest: list[str]) -> int:
    with launch.alone():
        from attention_conformance.tests.cli.audit_command import audit  # it imports torch, which takes a second

        return audit(given.target, given.write, given.force, given.device, given.seconds)


def _bench(given: argparse.Namespace, rest: list[str]) -> int:
    candidates = [f"--candidate={target}" for target in given.target]
    return launch.time([*candidates, *_passed(given, (*BENCH_OPTIONS, "--workload", "--baseline", "--seconds")), *rest])


def _vectors(given: argparse.Namespace, rest: list[str]) -> int:
    with launch.alone():
        from attention_conformance.tests.cli.vectors_command import answers_command, import_cases, write

        if given.action != "judge":
            return write(given) if given.action == "write" else import_cases(given)
        command = answers_command(given)
    return command if isinstance(command, int) else launch.judge([*command, *_passed(given, VECTOR_OPTIONS), *rest])


def _report_diff(given: argparse.Namespace, rest: list[str]) -> int:
    with launch.alone():
        from attention_conformance.tests.report.diff import diff

        return diff(given.old, given.new, given.format)


def _report_merge(given: argparse.Namespace, rest: list[str]) -> int:
    with launch.alone():
        from attention_conformance.tests.report.merge import merge

        return merge(given.shards, given.report)


def _matrix(given: argparse.Namespace, rest: list[str]) -> int:
    with launch.alone():
        from attention_conformance.tests.cli.matrix_command import matrix
        from attention_conformance.tests.cli.matrix_packages import CACHE

        given.environments = given.environments or CACHE
        return matrix(given)


BENCH_OPTIONS = ("--deadline", "--memory", "--convention", "--dtype", "--device")
BENCH_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "target": {"nargs": "+", **TARGET},
    "--workload": {"action": "append", "default": [], "metavar": "PATTERN", "help": "such as 'gpt2*' (repeatable)"},
    "--baseline": {"metavar": "NAME", "help": "the implementation that it is compared with"},
    "--seconds": {"metavar": "N", "help": "for each pair"},
}
VECTOR_OPTIONS = ("--report",)
VECTOR_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "action": {
        "choices": ("write", "import", "judge"),
        "help": "write vectors, import the node cases of ONNX Attention as such, or judge answers",
    },
    "folder": {"metavar": "VECTORS", "type": Path, "help": "the folder of the vectors"},
    "answers": {"metavar": "ANSWERS", "type": Path, "nargs": "?", "help": "judge: the folder of the answers"},
    "--feature": {"action": "append", "default": [], "metavar": "NAME", "help": "write: an option that is supported"},
    "--clause": {"action": "append", "default": [], "metavar": "PATTERN", "help": "write: only these clauses"},
    "--dtype": {
        "action": "append",
        "default": [],
        "metavar": "NAME",
        "help": "write, import: in it (default: float32)",
    },
    "--convention": {"action": "append", "default": [], "metavar": "KEY=VALUE", "help": "write: as for check"},
    "--largest": {"type": int, "metavar": "N", "help": "write: no array has more elements (default: 4096)"},
}
AUDIT_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "target": TARGET,
    "--write": {"metavar": "FILE", "type": Path, "help": "write an adapter that claims what was detected"},
    "--force": {"action": "store_true", "help": "overwrite FILE"},
    "--device": {"default": "cpu", "help": "where torch and JAX compute (default: cpu)"},
    "--seconds": {"metavar": "N", "type": float, "default": 30.0, "help": "how long to wait for each answer (30)"},
}
DIFF_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "old": {"metavar": "OLD", "type": Path, "help": "a folder of --report"},
    "new": {"metavar": "NEW", "type": Path, "help": "another"},
    "--format": {"choices": ("text", "markdown", "json"), "default": "text", "help": "(default: text)"},
}
MERGE_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "shards": {"metavar": "SHARD", "type": Path, "nargs": "+", "help": "a folder of --report, of a run with --shard"},
    "--report": {"metavar": "DIR", "type": Path, "required": True, "help": "write the report of the whole run there"},
}
MATRIX_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "pattern": {"metavar": "PATTERN", "nargs": "*", "help": "only these packages, such as 'onnx*'"},
    "--report": {"metavar": "DIR", "type": Path, "required": True, "help": "write the table and all reports there"},
    "--jobs": {"metavar": "N", "type": int, "default": 1, "help": "judge so many packages at once (default: 1)"},
    "--scheduler": {"metavar": "ADDRESS", "default": "", "help": "judge them on the workers of this Dask scheduler"},
    "--tier": {"default": "quick", "help": "as for check (default: quick)"},
    "--clause": {"action": "append", "default": [], "metavar": "PATTERN", "help": "as for check"},
    "--dtype": {"action": "append", "default": [], "metavar": "NAME", "help": "as for check"},
    "--environments": {"metavar": "DIR", "type": Path, "help": "keep environments there (default: in ~/.cache)"},
    "--constraint": {"metavar": "FILE", "type": Path, "help": "versions for the installer, as pip takes them"},
    "--since": {"metavar": "FILE", "type": Path, "help": "print what changed since this matrix.json was written"},
}
TARGETS = {**TARGET, "nargs": "*", "help": f"{TARGET['help']}; without any, the built-in ones"}
CHECK_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "target": TARGETS,
    "-v": {"dest": "verbose", "action": "store_true", "help": "print every failure, and all that was observed"},
    "--watch": {"action": "store_true", "help": "run again when the file is saved, what failed before first"},
    "--exitfirst": {"action": "store_true", "help": "stop at the first failure, with its diagnosis"},
}
COMMANDS: Mapping[str, Command] = {
    "check": Command("judge an implementation", _check, CHECK_OPTIONS, CHECK_ARGUMENTS),
    "audit": Command("detect the conventions of a callable", _audit, (), AUDIT_ARGUMENTS),
    "bench": Command("time an implementation", _bench, BENCH_OPTIONS, BENCH_ARGUMENTS),
    "explain": Command(
        "explain a clause: statement, equation, sources, what breaks it",
        _explain,
        (),
        {"clause": {"nargs": "+", "metavar": "CLAUSE"}},
    ),
    "list": Command("list clauses, implementations or defects, a line each", _list, (), {"what": {"choices": KINDS}}),
    "replay": Command("run a recorded failure again", _replay, PROCESS_OPTIONS, {"file": {"metavar": "FAILURE.json"}}),
    "vectors": Command(
        "write problems with expected answers into files, or judge answers to them",
        _vectors,
        VECTOR_OPTIONS,
        VECTOR_ARGUMENTS,
    ),
    "report-diff": Command("list the verdicts that differ between two reports", _report_diff, (), DIFF_ARGUMENTS),
    "matrix": Command("judge implementations of other packages", _matrix, (), MATRIX_ARGUMENTS),
    "report-merge": Command("make one report of the shards of a run", _report_merge, (), MERGE_ARGUMENTS),
}
