"""The clauses: what must hold, read from the Markdown of spec/chapters."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from itertools import groupby, pairwise, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.premises import Premise
from attention_conformance.spec.problem import HALF

CHAPTERS = Path(__file__).parent / "chapters"

_FIRST = ("scores", "softmax", "values", "heads", "projections", "cross-attention", "masks", "causal")
_THEN = ("shapes", "numerics", "gradients", "relations", "effects", "errors", "speed")
_FAMILY = ("grouped", "dropout", "returned", "window", "softcap", "positions", "sinks", "cache", "packed")
_LAST = ("head-gates", "modules", "conventions")
_SERVED = ("merge", "qk-norm", "rotary-tables", "paged", "quantised", "bucketed-bias", "latent")
_NUMBERS = {name: number for number, name in enumerate(_FIRST + _THEN + _FAMILY + _LAST + _SERVED, start=1)}
_REQUIRED = ("level", "features", "sources")
_FIELDS = (*_REQUIRED, "either", "scope", "equation", "status", "presumes", "kernels")
_PAPERS = (
    "Vaswani 2017",
    "Higham 2002",
    "Blanchard 2021",
    "Shazeer 2019",
    "Ainslie 2023",
    "Su 2021",
    "Black 2022",
    "Press 2022",
    "Shaw 2018",
    "Dao 2022",
    "Ye 2025",
    "Zhang 2019",
    "Henry 2020",
    "Dehghani 2023",
    "Chen 2023",
    "Peng 2023",
    "Ding 2024",
    "Wang 2024",
    "Bai 2025",
    "Kwon 2023",
    "Micikevicius 2022",
    "Qiu 2025",
    "Raffel 2020",
    "DeepSeek-V2 2024",
)
_INTERFACES = (
    *("torch SDPA", "torch MultiheadAttention", "ONNX Attention 23", "ONNX Attention 24", "ONNX RotaryEmbedding 23"),
    "FlashAttention kvcache",
)
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
    """One normative statement. It holds for an implementation that claims all of its features, and one of `either`."""

    id: str
    chapter: str
    level: Level
    features: frozenset[Feature]
    either: frozenset[Feature]
    """Features of which one is enough, next to all the others; none for most clauses."""
    scope: Scope | None
    """None: both scopes."""
    equation: str | None
    """The number of its equation, such as 8.1."""
    sources: tuple[str, ...]
    statement: str
    notes: tuple[str, ...]
    """The paragraphs after the statement, equations and errata left out."""
    errata: tuple[str, ...]
    """What sources state wrongly, and what holds instead."""
    presumes: frozenset[Premise]
    """The premises without which alone it holds."""
    measured: bool
    """Checked by the benchmarks; not part of a verdict of conformance."""
    kernels: Level
    """The level for what takes half types alone, or documents scores in float32."""
    file: str
    line: int

    @property
    def about(self) -> frozenset[Feature]:
        """Every feature that it is about."""
        return self.features | self.either

    def lacking(self, is_claimed: Callable[[Feature], bool]) -> str:
        """What it needs and is not claimed; empty if nothing is."""
        missing = sorted(feature for feature in self.features if not is_claimed(feature))
        if missing or not self.either or any(map(is_claimed, self.either)):
            return next(iter(missing), "")
        return " or ".join(sorted(self.either))

    def level_for(self, dtypes: Iterable[str], features: Container[Feature]) -> Level:
        """How binding it is for what takes these dtypes and claims these features."""
        return self.kernels if set(dtypes) <= set(HALF) or Feature.WIDE_SCORES in features else self.level


@dataclass(frozen=True)
class Chapter:
    """One file of the specification.

    Attributes:
        introduction: the paragraphs before the first clause, displayed equations included.
        equations: the LaTeX of each numbered equation, by its number, such as 8.1, on one line and without the tag.
    """

    name: str
    introduction: tuple[str, ...]
    equations: Mapping[str, str]
    clauses: tuple[Clause, ...]


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
    return _own_clauses() if folder == CHAPTERS else _by_id(_read(folder))


@cache
def specification() -> Mapping[str, Chapter]:
    """The specification's own chapters by name, in order."""
    return MappingProxyType({chapter.name: chapter for chapter in _read(CHAPTERS)})


@cache
def equations() -> Mapping[str, str]:
    """The LaTeX of every numbered equation of the specification, by its number."""
    return MappingProxyType(
        {tag: latex for chapter in specification().values() for tag, latex in chapter.equations.items()}
    )


@cache
def _own_clauses() -> Mapping[str, Clause]:
    return _by_id(specification().values())


def _by_id(read: Iterable[Chapter]) -> Mapping[str, Clause]:
    return MappingProxyType({clause.id: clause for chapter in read for clause in chapter.clauses})


def _read(folder: Path) -> list[Chapter]:
    for path in sorted(folder.glob("*.md")):
        if path.stem not in _NUMBERS:
            raise SpecError(f"{path.name}:1: no chapter is named {path.stem!r}")
    texts = {name: _lines(folder / f"{name}.md") for name in _NUMBERS}
    formulas = {name: _equations(name, lines) for name, lines in texts.items()}
    tags = frozenset(tag for own in formulas.values() for tag in own)
    return [_chapter(name, lines, formulas[name], tags) for name, lines in texts.items()]


def _chapter(name: str, lines: list[_Line], formulas: Mapping[str, str], tags: frozenset[str]) -> Chapter:
    clauses: dict[str, Clause] = {}
    for heading, body in _sections(lines):
        if heading.text in clauses:
            raise heading.wrong(f"duplicate clause {heading.text!r}")
        clauses[heading.text] = _clause(name, heading, body, tags)
    head = takewhile(lambda line: not line.text.startswith("## "), lines[1:])
    introduction = tuple(_joined(group).text for group in _paragraphs(head))
    return Chapter(name, introduction, MappingProxyType(formulas), tuple(clauses.values()))


def _lines(path: Path) -> list[_Line]:
    if not path.is_file():
        raise SpecError(f"{path.name}:1: the chapter is missing")
    texts = path.read_text(encoding="utf-8").splitlines() or [""]
    lines = [_Line(path.name, number, text.rstrip()) for number, text in enumerate(texts, start=1)]
    heading = f"# Chapter {_NUMBERS[path.stem]}: {path.stem}"
    lines[0].matching(re.escape(heading), f"the heading must be {heading!r}")
    return lines


def _equations(chapter: str, lines: list[_Line]) -> dict[str, str]:
    """The displayed equations that have a number; each is a paragraph of its own."""
    found: dict[str, str] = {}
    for group in _paragraphs(lines):
        latex = _joined(group).text.removeprefix("$$").removesuffix("$$")
        for line in group:
            for tag in re.findall(r"\\tag\{(.*?)\}", line.text):
                if not re.fullmatch(rf"{_NUMBERS[chapter]}\.[1-9][0-9]*", tag):
                    raise line.wrong(f"equation tag {tag!r} is not of chapter {_NUMBERS[chapter]}")
                if tag in found:
                    raise line.wrong(f"duplicate equation tag {tag!r}")
                found[tag] = latex.replace(f"\\tag{{{tag}}}", "").strip()
    return found


def _sections(lines: list[_Line]) -> Iterator[tuple[_Line, list[_Line]]]:
    starts = [index for index, line in enumerate(lines) if line.text.startswith("## ")]
    for start, end in pairwise([*starts, len(lines)]):
        yield replace(lines[start], text=lines[start].text.removeprefix("## ")), lines[start + 1 : end]


def _clause(chapter: str, heading: _Line, body: list[_Line], tags: frozenset[str]) -> Clause:
    first, *others = _paragraphs(body) or [[]]
    paragraphs = [_joined(group) for group in others]
    values = _values(heading, first)
    level = _choice(values["level"], Level)
    return Clause(
        id=heading.matching(rf"{chapter}\.[a-z0-9-]+", f"{heading.text!r} is no clause of {chapter!r}"),
        chapter=chapter,
        level=level,
        features=_features(values["features"]),
        either=_features(values.get("either")),
        scope=_scope(values.get("scope")),
        equation=_equation(values.get("equation"), tags),
        sources=tuple(_source(item) for item in values["sources"].split(";")),
        statement=_statement(heading, paragraphs, level),
        notes=tuple(item.text for item in paragraphs[1:] if not item.text.startswith(("$$", "Erratum"))),
        errata=tuple(_erratum(item) for item in paragraphs if item.text.startswith("Erratum")),
        presumes=_presumed(values.get("presumes")),
        measured=_measured(values.get("status")),
        kernels=_choice(values["kernels"], Level) if "kernels" in values else level,
        file=heading.file,
        line=heading.number,
    )


def _paragraphs(lines: Iterable[_Line]) -> list[list[_Line]]:
    return [list(group) for filled, group in groupby(lines, key=lambda line: bool(line.text)) if filled]


def _joined(group: list[_Line]) -> _Line:
    """A paragraph on one line, at the place where it begins."""
    return replace(group[0], text=" ".join(line.text.strip() for line in group))


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


def _features(line: _Line | None) -> frozenset[Feature]:
    return frozenset(_choice(item, Feature) for item in ([] if line is None else line.split(",")))


def _scope(line: _Line | None) -> Scope | None:
    return None if line is None or line.text == "any" else _choice(line, Scope)


def _presumed(line: _Line | None) -> frozenset[Premise]:
    rule = "what a clause presumes is 'no PREMISE', or several of these with commas"
    items = [] if line is None else line.split(",")
    return frozenset(
        _choice(replace(item, text=item.matching("no .+", rule).removeprefix("no ")), Premise) for item in items
    )


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
