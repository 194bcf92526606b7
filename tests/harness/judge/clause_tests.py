"""Which test checks which clause, as a row of a table or as a function, and which tests the claims call for."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, partial
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import Clause, chapters, load, specification
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.judge.comparison import RETURNED_AS
from attention_conformance.tests.harness.judge.judge import Judge

Argument = TypeVar("Argument")
Rule: TypeAlias = Callable[[Conventions], Iterable[Case]]
"""Cases that depend on the claimed conventions."""


@dataclass(frozen=True)
class ClauseTest:
    """What checks one clause, in the dtypes in which it can prove anything.

    Attributes:
        anywhere: whether other dtypes would do as well, and are left out to save time: where none of `dtypes` is
            claimed, the widest claimed one takes their place.
        last: whether it is run after all others, because it ends the candidate's process.
    """

    clause: str
    dtypes: tuple[str, ...]
    run: Callable[[Judge], None]
    anywhere: bool = False
    last: bool = False

    def __call__(self, judge: Judge) -> None:
        self.run(judge)


@dataclass(frozen=True)
class Row:
    """Cases whose answers have to equal the reference; see `row`."""

    clause: str
    cases: tuple[Case | Rule, ...]
    parts: tuple[str, ...]
    dtypes: tuple[str, ...]
    exactly: bool
    context: str | Callable[[Case], str]
    feature: Feature

    def check(self, judge: Judge) -> None:
        """Compares the parts that are claimed, in every case that the claims allow."""
        claimed = judge.parts() if self.feature in judge.claims else ()
        parts = [part for part in self.parts if part.partition(".")[0] in claimed]
        rules = (each(judge.conventions) if callable(each) else (each,) for each in self.cases)
        if not parts:
            return
        proposed = [case for cases in rules for case in cases]
        lengths, context = {case.sizes.key_length for case in proposed}, partial(self._context, judge.conventions)
        for case in judge.cases(*proposed):
            exactly = self.exactly and case.sizes.key_length in lengths  # more keys may not leave one weight alone
            judge.assert_conforms(case, *parts, exactly=exactly, context=context(case))

    def _context(self, claimed: Conventions, case: Case) -> str:
        return self.context.format(case=case, claimed=claimed) if isinstance(self.context, str) else self.context(case)


ALL_PARTS = ("output", *RETURNED_AS, "gradients")
"""Everything that an implementation may claim to return."""


def row(
    clause: str,
    *cases: Case | Rule,
    parts: tuple[str, ...] = ("output",),
    dtypes: tuple[str, ...] = tuple(DTYPES),
    exactly: bool = False,
    context: str | Callable[[Case], str] = "",
    feature: Feature = Feature.CORE,
) -> Row:
    """One row of a chapter's table: a clause that is checked by comparing answers with the reference.

    Args:
        clause: the id of the clause.
        cases: the cases, or functions from the claimed conventions to some.
        parts: what is compared, as far as it is claimed: names of `ALL_PARTS`, or `gradients.NAME`.
        dtypes: those in which the clause is checked.
        exactly: without any rounding error.
        context: explains a failure: a function of the case, or a text, in which {case} and {claimed}, the conventions,
            are filled in as by `str.format`.
        feature: the row is left out where this feature is not claimed.
    """
    return Row(clause, cases, parts, dtypes, exactly, context, feature)


def table(*rows: Row) -> tuple[ClauseTest, ...]:
    """The tests of a chapter's table; rows of the same clause are checked one after another.

    Raises:
        KeyError: the specification has no such clause.
    """
    by_clause: dict[str, list[Row]] = {}
    for each in rows:
        by_clause.setdefault(load()[each.clause].id, []).append(each)
    return tuple(ClauseTest(name, own[0].dtypes, partial(_check, own)) for name, own in by_clause.items())


def _check(rows: Sequence[Row], judge: Judge) -> None:
    for each in rows:
        each.check(judge)


def clause(
    identifier: str, dtypes: tuple[str, ...] = tuple(DTYPES), anywhere: bool = False, last: bool = False
) -> Callable[[Callable[[Judge], None]], ClauseTest]:
    """Makes a function the test of a clause, in the dtypes in which it can prove anything; see `ClauseTest`.

    Raises:
        KeyError: the specification has no such clause.
    """
    return partial(ClauseTest, load()[identifier].id, dtypes, anywhere=anywhere, last=last)


def group(
    check: Callable[[Judge, Argument], None],
    arguments: Mapping[str, Argument],
    dtypes: tuple[str, ...] = tuple(DTYPES),
    anywhere: bool = False,
) -> tuple[ClauseTest, ...]:
    """The tests of several clauses by one function, which is called with the argument of the clause."""
    tests = {name: partial(_called, check, argument) for name, argument in arguments.items()}
    return tuple(clause(name, dtypes, anywhere)(test) for name, test in tests.items())


def _called(check: Callable[[Judge, Argument], None], argument: Argument, judge: Judge) -> None:
    check(judge, argument)


@cache
def clause_tests() -> Mapping[str, ClauseTest]:
    """The test of every clause that has one, in the order of the specification."""
    return MappingProxyType({test.clause: test for chapter in chapters() for test in tests_of(chapter)})


def tests_of(chapter: str) -> list[ClauseTest]:
    """The tests of a chapter's file, tables and functions, in the order of the chapter."""
    module = importlib.import_module(f"attention_conformance.tests.conformance.test_{chapter.replace('-', '_')}")
    values = [each if isinstance(each, tuple) else (each,) for each in vars(module).values()]
    found = {test.clause: test for group in values for test in group if isinstance(test, ClauseTest)}
    return [found[clause.id] for clause in specification()[chapter].clauses if clause.id in found]


def claimed(clause: Clause, claims: Claims) -> str:
    """Empty if the claims call for the clause; otherwise why they do not."""
    if clause.scope is not None and clause.scope is not claims.scope:
        return f"is a clause of the {clause.scope} level"
    if missing := clause.lacking(claims.__contains__):
        return f"does not claim {missing}"
    contradicted = sorted(clause.presumes & claims.premises.names)
    return f"has the premise {contradicted[0]}, without which alone it holds" if contradicted else ""


def dtypes_of(test: ClauseTest, claims: Claims) -> tuple[str, ...]:
    """The claimed dtypes in which a clause is checked, the widest first."""
    own = tuple(dtype for dtype in test.dtypes if dtype in claims.dtypes)
    return own or (tuple(dtype for dtype in DTYPES if dtype in claims.dtypes)[:1] if test.anywhere else ())


@dataclass(frozen=True, eq=False)
class PlannedCheck:
    """One verdict of a run: a clause for an implementation in one dtype."""

    clause: Clause
    test: ClauseTest
    implementation: Implementation
    dtype: str


@dataclass(frozen=True)
class Selection:
    """What the command line selects; an empty tuple selects everything.

    Attributes:
        notes: lines for the end of the run.
    """

    implementations: tuple[Implementation, ...]
    clauses: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def wants(self, clause: Clause) -> bool:
        """Whether a pattern of --clause names it."""
        return not self.clauses or any(fnmatchcase(clause.id, pattern) for pattern in self.clauses)

    def plan(self, chapter: str = "") -> Iterator[PlannedCheck]:
        """Every verdict of the run, or those of one chapter, in the order of the specification."""
        for identifier, test in clause_tests().items():
            clause = load()[identifier]
            if chapter in ("", clause.chapter) and self.wants(clause):
                for implementation, dtype in self.subjects(clause, test):
                    yield PlannedCheck(clause, test, implementation, dtype)

    def subjects(self, clause: Clause, test: ClauseTest) -> Iterator[tuple[Implementation, str]]:
        """The implementations and dtypes for which a clause is checked."""
        if self.wants(clause):
            for implementation in self.implementations:
                if not claimed(clause, implementation.claims):
                    yield from ((implementation, dtype) for dtype in self.dtypes_of(implementation, test))

    def dtypes_of(self, implementation: Implementation, test: ClauseTest) -> tuple[str, ...]:
        """The dtypes in which a clause is checked for an implementation, widest first."""
        selected, own = self.dtypes or tuple(DTYPES), dtypes_of(test, implementation.claims)
        return tuple(d for d in own if d in selected)
