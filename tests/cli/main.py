"""The command line of `attention-conformance`: what it takes, and what of the suite answers it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any, NoReturn

from attention_conformance.tests.cli import launch
from attention_conformance.tests.cli.options import NAME, OPTIONS

ABOUT = "Tells whether an attention implementation is right, and which mistake it makes if not."
TARGET = {"metavar": "TARGET", "help": "FILE.py:NAME or package.module:NAME"}
EXPECTED = ("--expected-failures", "--propose-expected-failures")
ASKED = ("--convention", "--clause", "--dtype", "--device", "--tier", "--report", *EXPECTED, "--implementation")
KINDS = ("clauses", "implementations", "defects")


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
        run: gives the exit status; takes what was given, and what is pytest's.
        options: of pytest, that it hands on.
        arguments: its own, with the keywords by which argparse is told of them.
    """

    about: str
    run: Callable[[argparse.Namespace, list[str]], int]
    options: tuple[str, ...] = ()
    arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def takes(self) -> Mapping[str, Mapping[str, Any]]:
        """All that can be given to it."""
        return {**self.arguments, **{option: OPTIONS[option] for option in self.options}}


class Parser(argparse.ArgumentParser):
    """A parser whose errors end with the status that the suite has for them."""

    def error(self, message: str) -> NoReturn:
        """One line, with where to read more."""
        self.exit(launch.UNUSABLE, f"{self.prog}: {message}\n{self.prog} --help says what there is\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit status: 0, 1 where a MUST does not hold, 4 where the input is unusable."""
    given, rest = read(sys.argv[1:] if arguments is None else arguments)
    return COMMANDS[given.command].run(given, rest)


def read(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """A command line as it was meant, and what of it is pytest's. One that cannot be read ends the program."""
    own, rest = _split(list(words))
    parser, below = _parsers()
    if own and own[0] not in COMMANDS and not own[0].startswith("-"):
        parser.error(f"there is no command {own[0]!r}{_meant(own[0], COMMANDS)}")
    given, unknown = parser.parse_known_args(own)
    if unknown:
        meant = _meant(unknown[0], COMMANDS[given.command].takes)
        below[given.command].error(f"cannot read {unknown[0]!r}{meant}")
    return given, rest


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before and after a lone `--`; the rest is pytest's."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _meant(word: str, names: Iterable[str]) -> str:
    near = get_close_matches(word.partition("=")[0], list(names), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _parsers() -> tuple[Parser, dict[str, Parser]]:
    """The parser, and those of its commands."""
    parser = Parser(prog=NAME, description=ABOUT, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{NAME} {version(NAME)}")
    below = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    made = {}
    for name, command in COMMANDS.items():
        end = "What follows a lone -- is handed to pytest." if command.options else None
        made[name] = below.add_parser(
            name, help=command.about, description=command.about, epilog=end, allow_abbrev=False
        )
        for taken, keywords in command.takes.items():
            made[name].add_argument(taken, **keywords)
    return parser, made


def _handed(given: argparse.Namespace, options: Iterable[str]) -> Iterator[str]:
    """The options as pytest takes them, each joined to its value."""
    for option in options:
        value = getattr(given, OPTIONS.get(option, {}).get("dest", option.strip("-").replace("-", "_")))
        if value is True:
            yield option
        elif value:
            yield from (f"{option}={each}" for each in (value if isinstance(value, list) else [value]))


def _check(given: argparse.Namespace, rest: list[str]) -> int:
    candidates = [f"--candidate={target}" for target in given.target]
    return launch.judge([*candidates, *_handed(given, ASKED), *rest])


def _replay(given: argparse.Namespace, rest: list[str]) -> int:
    return launch.judge([f"--replay={given.file}", *rest])


def _list(given: argparse.Namespace, rest: list[str]) -> int:
    return launch.judge([f"--list-{given.what}", *rest])


def _explain(given: argparse.Namespace, rest: list[str]) -> int:
    return launch.judge([*(f"--explain={clause}" for clause in given.clause), *rest])


def _audit(given: argparse.Namespace, rest: list[str]) -> int:
    options = _handed(given, ("--write", "--force", "--device", "--seconds"))
    return launch.program("attention_conformance.tests.cli.audit_command", [given.target, *options, *rest])


def _bench(given: argparse.Namespace, rest: list[str]) -> int:
    candidates = [f"--candidate={target}" for target in given.target]
    return launch.time([*candidates, *_handed(given, (*TIMED, "--workload", "--baseline", "--seconds")), *rest])


def _report_diff(given: argparse.Namespace, rest: list[str]) -> int:
    return launch.program(
        "attention_conformance.tests.report.diff", [given.old, given.new, f"--format={given.format}", *rest]
    )


TIMED = ("--convention", "--dtype", "--device")
TIMING: Mapping[str, Mapping[str, Any]] = {
    "target": {"nargs": "+", **TARGET},
    "--workload": {"action": "append", "default": [], "metavar": "PATTERN", "help": "such as 'gpt2*' (repeatable)"},
    "--baseline": {"metavar": "NAME", "help": "the implementation that it is compared with"},
    "--seconds": {"metavar": "N", "help": "for each pair"},
}
AUDITED: Mapping[str, Mapping[str, Any]] = {
    "target": TARGET,
    "--write": {"metavar": "FILE", "help": "write an adapter that claims what was found"},
    "--force": {"action": "store_true", "help": "overwrite FILE"},
    "--device": {"metavar": "DEVICE", "help": "where it computes (default: cpu)"},
    "--seconds": {"metavar": "N", "help": "so long is waited for each answer"},
}
COMPARED: Mapping[str, Mapping[str, Any]] = {
    "old": {"metavar": "OLD", "help": "a folder of --report"},
    "new": {"metavar": "NEW", "help": "another"},
    "--format": {"choices": ("text", "markdown", "json"), "default": "text", "help": "(default: text)"},
}
JUDGED = {**TARGET, "nargs": "*", "help": f"{TARGET['help']}; without any, the built-in ones"}
COMMANDS: Mapping[str, Command] = {
    "check": Command("judge an implementation", _check, ASKED, {"target": JUDGED}),
    "audit": Command("find out the conventions of a callable", _audit, (), AUDITED),
    "bench": Command("time an implementation", _bench, TIMED, TIMING),
    "explain": Command(
        "print all that is known of a clause", _explain, (), {"clause": {"nargs": "+", "metavar": "CLAUSE"}}
    ),
    "list": Command("print what there is, a line each", _list, (), {"what": {"choices": KINDS}}),
    "replay": Command("ask a recorded failure again", _replay, (), {"file": {"metavar": "FAILURE.json"}}),
    "report-diff": Command("say what changed verdict between two reports", _report_diff, (), COMPARED),
}
