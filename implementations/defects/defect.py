"""How a defect is written down: the mistake, the clauses it breaks, what hides it, and how it is repaired."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
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
class Defect:
    """An implementation with one mistake.

    Attributes:
        id: stable and unique, in words with hyphens; the name of its implementation.
        does: what it does wrong, one sentence.
        repair: what to do instead, one sentence.
        hides: where it does not show: the inputs with which tests usually miss it.
        matters: who meets it, and the consequence; that of its severity where a defect has no other.
        severity: see `Severity`.
        links: public reports of the same mistake.
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
    does: str
    repair: str
    hides: str
    matters: str
    severity: Severity = Severity.WRONG
    links: tuple[str, ...] = ()
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

    def __str__(self) -> str:
        return self.id


REGISTRY: dict[str, list[Defect]] = {}
"""The defects of each module that was imported, by its name."""
