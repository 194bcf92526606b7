"""How a defect is written down: the mistake, the clauses it breaks, what hides it, and how it is repaired."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from attention_conformance.implementations.api.contract import Implementation


class Severity(StrEnum):
    """What a user of the defect gets; `MEANING` explains each."""

    WRONG = "wrong"
    LEAK = "leak"
    NAN = "nan"
    CRASH = "crash"
    GRADIENT = "gradient"
    PRECISION = "precision"
    STATE = "state"
    COST = "cost"


MEANING: Mapping[Severity, str] = {
    Severity.WRONG: "Finite wrong numbers, silently.",
    Severity.LEAK: "Something hidden becomes visible: future tokens, padding, another document.",
    Severity.NAN: "NaN or infinity.",
    Severity.CRASH: "An error where there is an answer, or an answer where there should be an error.",
    Severity.GRADIENT: "Right outputs, wrong gradients: training goes wrong.",
    Severity.PRECISION: "Digits are lost.",
    Severity.STATE: "Later calls, or the caller's own data, are damaged.",
    Severity.COST: "Right answers that take more memory or time than they need.",
}


@dataclass(frozen=True)
class Text:
    """A defect in words; the files in `texts/` have one section for each.

    Attributes:
        does: what it does wrong, one sentence.
        repair: what to do instead, one sentence.
        hides: where it does not show: the inputs with which tests usually miss it.
        matters: who meets it, and the consequence; may be empty.
        links: public reports of the same mistake.
    """

    does: str
    repair: str
    hides: str
    matters: str
    links: tuple[str, ...]


@dataclass(frozen=True)
class Defect:
    """An implementation with one mistake.

    Attributes:
        id: stable and unique, in words with hyphens; the name of its implementation, and its heading in `texts/`.
        severity: see `Severity`.
        clauses: those that must fail, the one that names the mistake first.
        holds: similar clauses that must pass, so that the mistake is distinguished from others.
        dtype: the dtype in which these are checked.
        raises: it may fail by an exception, and not only by its numbers.
        follows: the convention that it follows without claiming it, as the command line spells it: a diagnosis names
            that rather than a mistake.
        replaced: the step of `Steps` that is replaced, and by what; empty for a whole function or layer.
    """

    implementation: Implementation
    clauses: tuple[str, ...]
    severity: Severity = Severity.WRONG
    holds: tuple[str, ...] = ()
    dtype: str = "float64"
    raises: bool = False
    follows: str = ""
    replaced: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return self.implementation.name

    @property
    def chapter(self) -> str:
        """The chapter of the clause that names the mistake."""
        return self.clauses[0].partition(".")[0]

    @property
    def text(self) -> Text:
        """Its description, from `texts/`."""
        return _texts()[self.id]

    @property
    def matters(self) -> str:
        """Who meets it, and the consequence; that of its severity where its text has no other."""
        return self.text.matters or MEANING[self.severity]

    def __str__(self) -> str:
        return self.id


REGISTRY: dict[str, list[Defect]] = {}
"""The defects of each module that was imported, by its name."""


@cache
def _texts() -> Mapping[str, Text]:
    """By the ids of the defects; they are read when the first one is needed."""
    files = sorted((Path(__file__).parent / "texts").glob("*.md"))
    sections = [part for file in files for part in file.read_text(encoding="utf-8").split("\n## ")[1:]]
    return {section.partition("\n")[0]: _text(section) for section in sections}


def _text(section: str) -> Text:
    """Raises ValueError where a line of a section is of no known form."""
    heading, does, *items = [line for line in section.splitlines() if line]
    values: dict[str, list[str]] = {name: [] for name in ("repair", "hidden by", "matters", "reported")}
    for item in items:
        name, colon, value = item.removeprefix("- ").partition(": ")
        if not colon or name not in values:
            raise ValueError(f"{heading}: {item!r} begins with none of: {', '.join(values)}")
        values[name].append(value)
    (repair,), (hides,), links = values["repair"], values["hidden by"], values["reported"]
    return Text(does, repair, hides, " ".join(values["matters"]), tuple(link.strip("<>") for link in links))
