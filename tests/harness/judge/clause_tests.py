"""The suite: which test speaks for which clause, and which tests an implementation's claims call for."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from types import ModuleType
from typing import TypeAlias, TypeVar

from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.spec.clauses import Clause, chapters, load
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.judge import Judge

ClauseTest: TypeAlias = Callable[[Judge], None]
Test = TypeVar("Test", bound=ClauseTest)


@dataclass(frozen=True)
class ClauseMark:
    """The mark that `clause` leaves on a test."""

    clause: str
    dtypes: tuple[str, ...]


def clause(identifier: str, dtypes: tuple[str, ...] = tuple(DTYPES)) -> Callable[[Test], Test]:
    """Marks a test as the one that checks a clause, in the dtypes in which it can say something.

    Raises:
        KeyError: the specification has no such clause.
    """
    known = load()[identifier]

    def mark(test: Test) -> Test:
        test.__dict__["clause_mark"] = ClauseMark(known.id, dtypes)
        return test

    return mark


def mark_of(test: object) -> ClauseMark | None:
    """The mark of a test, if it has one."""
    found = getattr(test, "clause_mark", None)
    return found if isinstance(found, ClauseMark) else None


@cache
def clause_tests() -> Mapping[str, ClauseTest]:
    """The test of every clause that has one, in the order of the specification."""
    modules: list[ModuleType] = [
        importlib.import_module(f"attention_conformance.tests.conformance.test_{name.replace('-', '_')}")
        for name in chapters()
    ]
    tests = [test for module in modules for test in vars(module).values()]
    found = {mark.clause: test for test in tests if (mark := mark_of(test))}
    return {identifier: found[identifier] for identifier in load() if identifier in found}


@cache
def clause_marks() -> Mapping[str, ClauseMark]:
    """The marks of these tests."""
    marks = {identifier: mark_of(test) for identifier, test in clause_tests().items()}
    return {identifier: mark for identifier, mark in marks.items() if mark is not None}


def claimed(clause: Clause, claims: Claims) -> str:
    """Empty if the claims call for the clause; otherwise why they do not."""
    if clause.scope is not None and clause.scope is not claims.scope:
        return f"is a clause of the {clause.scope} level"
    missing = sorted(feature for feature in clause.features if feature not in claims)
    return f"does not claim {missing[0]}" if missing else ""


@dataclass(frozen=True)
class Selection:
    """What the command line selects; an empty tuple selects everything.

    Attributes:
        notes: what there is to say of it at the end.
    """

    implementations: tuple[Implementation, ...]
    clauses: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def wants(self, clause: Clause) -> bool:
        """Whether a pattern of --clause names it."""
        return not self.clauses or any(fnmatchcase(clause.id, pattern) for pattern in self.clauses)

    def subjects(self, clause: Clause, mark_of: ClauseMark) -> Iterator[tuple[Implementation, str]]:
        """The implementations and dtypes of which a clause is asked."""
        if self.wants(clause):
            for implementation in self.implementations:
                if not claimed(clause, implementation.claims):
                    yield from ((implementation, dtype) for dtype in self.dtypes_of(implementation, mark_of))

    def dtypes_of(self, implementation: Implementation, mark_of: ClauseMark) -> tuple[str, ...]:
        """The dtypes in which a clause is asked of an implementation, widest first."""
        asked = self.dtypes or tuple(DTYPES)
        return tuple(d for d in mark_of.dtypes if d in asked and d in implementation.claims.dtypes)
