"""The command line of `attention-conformance`: what it takes, and what of the suite answers it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import NoReturn

from . import suite
from .options import NAME, OPTIONS

UNUSABLE = 4
"""Exit status for input that cannot be used, as pytest has it."""
ASKED = (
    "--convention",
    "--clause",
    "--dtype",
    "--device",
    "--tier",
    "--report",
    "--expected-failures",
    "--propose-expected-failures",
)
"""Options of pytest that `check` hands on."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors end with the status that the suite has for them."""

    def error(self, message: str) -> NoReturn:
        """One line, with where to read more."""
        self.exit(UNUSABLE, f"{self.prog}: {message}\n{self.prog} --help says what there is\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit status: 0, 1 where a MUST does not hold, 4 where the input is unusable."""
    given, rest = read(sys.argv[1:] if arguments is None else arguments)
    run: Callable[[argparse.Namespace, list[str]], int] = given.run
    return run(given, rest)


def read(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """A command line as it was meant, and what of it is pytest's. One that cannot be read ends the program."""
    own, rest = _split(list(words))
    parser, commands = _parsers()
    if own and own[0] not in commands and not own[0].startswith("-"):
        parser.error(f"there is no command {own[0]!r}{_meant(own[0], commands)}")
    given, unknown = parser.parse_known_args(own)
    if unknown:
        commands[given.command].error(f"cannot read {unknown[0]!r}{_meant(unknown[0], given.options)}")
    return given, rest


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before and after a lone `--`; the rest is pytest's."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _meant(word: str, names: Sequence[str] | dict[str, Parser]) -> str:
    near = get_close_matches(word.partition("=")[0], list(names), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _parsers() -> tuple[Parser, dict[str, Parser]]:
    about = "Tells whether an attention implementation is right, and which mistake it makes if not."
    parser = Parser(prog=NAME, description=about, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"{NAME} {version(NAME)}")
    below = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    made: dict[str, Parser] = {}

    def command(name: str, run: Callable[..., int], about: str, options: Sequence[str] = ()) -> Parser:
        end = "What follows a lone -- is handed to pytest." if options else None
        made[name] = below.add_parser(name, help=about, description=about, epilog=end, allow_abbrev=False)
        for option in options:
            made[name].add_argument(option, **OPTIONS[option])
        made[name].set_defaults(run=run, options=options)
        return made[name]

    target = "FILE.py:NAME or package.module:NAME"
    check = command("check", _check, "judge an implementation", (*ASKED, "--implementation"))
    check.add_argument("target", nargs="*", metavar="TARGET", help=f"{target}; without any, the built-in ones")
    command("replay", _replay, "ask a recorded failure again").add_argument("file", metavar="FAILURE.json")
    listing = command("list", _list, "print what there is, a line each")
    listing.add_argument("what", choices=("clauses", "implementations", "defects"))
    command("explain", _explain, "print all that is known of a clause").add_argument(
        "clause", nargs="+", metavar="CLAUSE"
    )
    audit = command("audit", _audit, "find out the conventions of a callable")
    audit.add_argument("target", metavar="TARGET", help=target)
    audit.add_argument("--write", metavar="FILE", help="write an adapter that claims what was found")
    bench = command("bench", _bench, "time an implementation", ("--dtype", "--device", "--convention"))
    bench.add_argument("target", nargs="+", metavar="TARGET", help=target)
    bench.add_argument(
        "--workload", action="append", default=[], metavar="PATTERN", help="such as 'gpt2*' (repeatable)"
    )
    bench.add_argument("--baseline", metavar="NAME", help="the implementation that it is compared with")
    bench.add_argument("--seconds", metavar="N", help="for each pair")
    diff = command("report-diff", _report_diff, "say what changed verdict between two reports")
    diff.add_argument("old", metavar="OLD")
    diff.add_argument("new", metavar="NEW")
    diff.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="(default: text)")
    return parser, made


def _handed(given: argparse.Namespace, options: Sequence[str]) -> Iterator[str]:
    """The options as pytest takes them, each joined to its value."""
    for option in options:
        value = getattr(given, OPTIONS.get(option, {}).get("dest", option.strip("-").replace("-", "_")))
        if value is True:
            yield option
        elif value:
            yield from (f"{option}={each}" for each in (value if isinstance(value, list) else [value]))


def _check(given: argparse.Namespace, rest: list[str]) -> int:
    candidates = [f"--candidate={target}" for target in given.target]
    return suite.judge([*candidates, *_handed(given, given.options), *rest])


def _replay(given: argparse.Namespace, rest: list[str]) -> int:
    return suite.judge([f"--replay={given.file}", *rest])


def _list(given: argparse.Namespace, rest: list[str]) -> int:
    return suite.judge([f"--list-{given.what}", *rest])


def _explain(given: argparse.Namespace, rest: list[str]) -> int:
    return suite.judge([*(f"--explain={clause}" for clause in given.clause), *rest])


def _audit(given: argparse.Namespace, rest: list[str]) -> int:
    written = ["--write", given.write] if given.write else []
    return suite.program("implementations.audit", [given.target, *written, *rest])


def _bench(given: argparse.Namespace, rest: list[str]) -> int:
    candidates = [f"--candidate={target}" for target in given.target]
    options = _handed(given, (*given.options, "--workload", "--baseline", "--seconds"))
    return suite.time([*candidates, *options, *rest])


def _report_diff(given: argparse.Namespace, rest: list[str]) -> int:
    return suite.program("tests.report.diff", [given.old, given.new, "--format", given.format, *rest])
