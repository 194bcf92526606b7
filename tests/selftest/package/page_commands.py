"""The steps of a page for its reader: files to write, commands to type, and their output."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from pathlib import Path

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"# (\S+\.(?:py|toml))\n(.*)", re.DOTALL)
STATUS = re.compile(r"# exit status (\d+)")
MEASURED = re.compile(r"\d+\.\d+(e[+-]?\d+)?|\d+e[+-]?\d+")
"""Errors and times: they differ from one machine to the next."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, and the line on which its text begins."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class File:
    """A file that the page shows, named by its first line; an excerpt if it is a part of a file of the repository."""

    name: str
    text: str
    excerpt: bool = False


@dataclass(frozen=True)
class Command:
    """A command that the page shows, with its output and exit status."""

    text: str
    output: str
    status: int


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        yield Block(match[1].strip(), match[2], text.count("\n", 0, match.start()) + 2)


def steps(page: Path) -> list[File | Command]:
    """The files and commands of a page, from top to bottom."""
    result: list[File | Command] = []
    for block in blocks(page):
        if block.language == "console":
            result.extend(_commands(block))
        elif name := NAME.match(block.text):
            result.append(File(name[1], name[2], excerpt=True) if "/" in name[1] else File(name[1], block.text))
    return result


def _commands(block: Block) -> Iterator[Command]:
    before, *shown = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    if before:
        raise ValueError(f"line {block.line}: a block of commands begins with '$ ', not with {before[:40]!r}")
    for each in shown:
        command, _, rest = each.replace("\\\n", "").partition("\n")
        status = STATUS.search(rest)
        yield Command(command.strip(), STATUS.sub("", rest).strip(), int(status[1]) if status else 0)


def agree(shown: str, got: str) -> bool:
    """Whether the output is what the page shows: "..." stands for anything, a measured number for any other."""
    want, have = (MEASURED.sub("0.0", text) for text in (shown, got))
    return not shown or OutputChecker().check_output(want, have, ELLIPSIS | NORMALIZE_WHITESPACE)
