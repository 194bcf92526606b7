"""The clauses: what must hold, read from the Markdown of spec/chapters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import groupby, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from attention_conformance.spec.features import Feature, Scope

CHAPTERS = Path(__file__).parent / "chapters"

_FIRST = ("scores", "softmax", "values", "heads", "projections", "cross-attention", "masks", "causal")
_THEN = ("shapes", "numerics", "gradients", "relations", "effects", "errors", "speed")
_FAMILY = ("grouped", "dropout", "returned", "window", "softcap", "positions", "sinks", "cache", "packed")
_LAST = ("head-gates", "modules", "conventions")
_NUMBERS = {name: number for number, name in enumerate(_FIRST + _THEN + _FAMILY + _LAST, start=1)}
_REQUIRED = ("level", "features", "sources")
_FIELDS = (*_REQUIRED, "scope", "equation", "status")
_PAPERS = (
    "Vaswani 2017",
    "Higham 2002",
    "Blanchard 2021",
    "Shazeer 2019",
    "Ainslie 2023",
    "Su 2021",
    "Press 2022",
    "Shaw 2018",
    "Dao 2022",
)
_INTERFACES = ("torch SDPA", "torch MultiheadAttention", "ONNX Attention 23", "ONNX Attention 24")
_SOURCES = (*"ABCDE", *_PAPERS, *_INTERFACES, "specification")
_NO_STATEMENT = ("- ", "#", "$$", "Erratum", "Convention:")

_Choice = TypeVar("_Choice", bound=StrEnum)


class SpecError(Exception):
    """A chapter is malformed; the message is FILE:LINE: and the rule that it breaks."""


class Level(StrEnum):
    """How binding a clause is."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    MAY = "MAY"


@dataclass(frozen=True)
class Clause:
    """One normative statement. It holds for an implementation that claims all of its features."""

    id: str
    chapter: str
    level: Level
    features: frozenset[Feature]
    scope: Scope | None
    """None: both scopes."""
    equation: str | None
    sources: tuple[str, ...]
    statement: str
    errata: tuple[str, ...]
    """What sources say wrong, and what holds instead."""
    measured: bool
    """Asked by the benchmarks, and no part of a verdict of conformance."""
    file: str
    line: int


@dataclass(frozen=True)
class _Line:
    """Text of a chapter and the place where it stands."""

    file: str
    number: int
    text: str

    def wrong(self, rule: str) -> SpecError:
        return SpecError(f"{self.file}:{self.number}: {rule}")

    def matching(self, pattern: str, rule: str) -> str:
        if not re.fullmatch(pattern, self.text):
            raise self.wrong(rule)
        return self.text

    def split(self, separator: str) -> list[_Line]:
        return [replace(self, text=part.strip()) for part in self.text.split(separator)]


def chapters() -> tuple[str, ...]:
    """The names of the chapters, in order."""
    return tuple(_NUMBERS)


def load(folder: Path = CHAPTERS) -> Mapping[str, Clause]:
    """All clauses by id, in the order of the document. The specification's own are read once.

    Raises:
        SpecError: a chapter is missing or malformed.
    """
    return _own() if folder == CHAPTERS else _read(folder)


@cache
def _own() -> Mapping[str, Clause]:
    return _read(CHAPTERS)


def _read(folder: Path) -> Mapping[str, Clause]:
    for path in sorted(folder.glob("*.md")):
        if path.stem not in _NUMBERS:
            raise SpecError(f"{path.name}:1: no chapter is named {path.stem!r}")
    texts = {name: _lines(folder / f"{name}.md") for name in _NUMBERS}
    tags = frozenset(tag for name, lines in texts.items() for tag in _tags(name, lines))
    clauses: dict[str, Clause] = {}
    for name, lines in texts.items():
        for heading, body in _sections(lines):
            if heading.text in clauses:
                raise heading.wrong(f"duplicate clause {heading.text!r}")
            clauses[heading.text] = _clause(name, heading, body, tags)
    return MappingProxyType(clauses)


def _lines(path: Path) -> list[_Line]:
    if not path.is_file():
        raise SpecError(f"{path.name}:1: the chapter is missing")
    texts = path.read_text(encoding="utf-8").splitlines() or [""]
    lines = [_Line(path.name, number, text.rstrip()) for number, text in enumerate(texts, start=1)]
    heading = f"# Chapter {_NUMBERS[path.stem]}: {path.stem}"
    lines[0].matching(re.escape(heading), f"the heading must be {heading!r}")
    return lines


def _tags(chapter: str, lines: list[_Line]) -> set[str]:
    tags: set[str] = set()
    for line in lines:
        for tag in re.findall(r"\\tag\{(.*?)\}", line.text):
            if not re.fullmatch(rf"{_NUMBERS[chapter]}\.[1-9][0-9]*", tag):
                raise line.wrong(f"equation tag {tag!r} is not of chapter {_NUMBERS[chapter]}")
            if tag in tags:
                raise line.wrong(f"duplicate equation tag {tag!r}")
            tags.add(tag)
    return tags


def _sections(lines: list[_Line]) -> Iterator[tuple[_Line, list[_Line]]]:
    starts = [index for index, line in enumerate(lines) if line.text.startswith("## ")]
    for start, end in pairwise([*starts, len(lines)]):
        yield replace(lines[start], text=lines[start].text.removeprefix("## ")), lines[start + 1 : end]


def _clause(chapter: str, heading: _Line, body: list[_Line], tags: frozenset[str]) -> Clause:
    first, *others = _paragraphs(body) or [[]]
    paragraphs = [replace(group[0], text=" ".join(line.text.strip() for line in group)) for group in others]
    values = _values(heading, first)
    level = _choice(values["level"], Level)
    return Clause(
        id=heading.matching(rf"{chapter}\.[a-z0-9-]+", f"{heading.text!r} is no clause of {chapter!r}"),
        chapter=chapter,
        level=level,
        features=frozenset(_choice(item, Feature) for item in values["features"].split(",")),
        scope=_scope(values.get("scope")),
        equation=_equation(values.get("equation"), tags),
        sources=tuple(_source(item) for item in values["sources"].split(";")),
        statement=_statement(heading, paragraphs, level),
        errata=tuple(_erratum(item) for item in paragraphs if item.text.startswith("Erratum")),
        measured=_measured(values.get("status")),
        file=heading.file,
        line=heading.number,
    )


def _paragraphs(lines: list[_Line]) -> list[list[_Line]]:
    return [list(group) for filled, group in groupby(lines, key=lambda line: bool(line.text)) if filled]


def _values(heading: _Line, lines: list[_Line]) -> dict[str, _Line]:
    values: dict[str, _Line] = {}
    for line in lines:
        match = re.fullmatch(r"- ([a-z]+): (.+)", line.text)
        if match is None or match[1] not in _FIELDS:
            raise line.wrong(f"unknown field {line.text!r}; the fields are: {', '.join(_FIELDS)}")
        if match[1] in values:
            raise line.wrong(f"duplicate field {match[1]!r}")
        values[match[1]] = replace(line, text=match[2])
    for name in _REQUIRED:
        if name not in values:
            raise heading.wrong(f"clause {heading.text!r} lacks the field {name!r}")
    return values


def _choice(line: _Line, kind: type[_Choice]) -> _Choice:
    try:
        return kind(line.text)
    except ValueError:
        raise line.wrong(f"unknown {kind.__name__.lower()} {line.text!r}") from None


def _scope(line: _Line | None) -> Scope | None:
    return None if line is None or line.text == "any" else _choice(line, Scope)


def _equation(line: _Line | None, tags: frozenset[str]) -> str | None:
    if line is not None and line.text not in tags:
        raise line.wrong(f"no chapter defines equation {line.text!r}")
    return None if line is None else line.text


def _source(line: _Line) -> str:
    return line.matching(rf"({'|'.join(_SOURCES)})( .+)?", f"unknown source {line.text!r}")


def _erratum(line: _Line) -> str:
    rule = "an erratum begins with 'Erratum (X): ', where X is a source letter, A to E"
    return line.matching(r"Erratum \([A-E](, [A-E])*\): .+", rule)


def _measured(line: _Line | None) -> bool:
    return line is not None and bool(line.matching("measured", f"unknown status {line.text!r}"))


def _statement(heading: _Line, paragraphs: list[_Line], level: Level) -> str:
    if not paragraphs or paragraphs[0].text.startswith(_NO_STATEMENT):
        raise heading.wrong(f"clause {heading.text!r} lacks a statement")
    rule = f"the statement of {heading.text!r} lacks the word {level}"
    return paragraphs[0].matching(rf".*\b{level}\b.*", rule)
