"""`parametrize_with_clauses`: the clauses as parameters of a test in somebody's own pytest suite.

What judges is imported when pytest collects the test, not when the decorator is called: it takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload
from warnings import warn

import pytest

if TYPE_CHECKING:
    from attention_conformance.spec.clauses import Clause
    from attention_conformance.spec.conventions import Conventions
    from attention_conformance.tests.harness.run.arguments import Arguments, Names, Target
    from attention_conformance.tests.report.verdict import Verdict

ARGUMENT = "clause"
"""The parameter of the test that receives a `ClauseCheck`."""
NO_CONVENTIONS: Mapping[str, str] = MappingProxyType({})


class ClauseUndeterminedError(Exception):
    """The suite could not judge a clause that is claimed; the message has the reason."""


def parametrize_with_clauses(
    target: Target,
    *,
    clauses: Names = (),
    dtypes: Names = (),
    tier: str = "quick",
    device: str = "cpu",
    conventions: Mapping[str, str] | Conventions = NO_CONVENTIONS,
    deadline: float | None = None,
    memory: str | int | None = None,
) -> pytest.MarkDecorator:
    """A decorator by which a test runs once for each clause and dtype that an implementation claims.

        @parametrize_with_clauses(adapter)
        def test_attention(clause: ClauseCheck) -> None:
            clause.check()

    The ids are like `masks.bool-float32`. A clause of the implementation's expected failures is a strict xfail: it
    fails once it passes. A SHOULD or MAY that does not hold is an xfail with its message as the reason. Nothing of
    pytest's configuration is changed. An argument that cannot be used is an error of pytest's collection.

    Args:
        target: an `Implementation`, or what else `check` takes.
        clauses: ids or patterns such as "masks.*"; none stands for all.
        dtypes: such as "float32"; none stands for all that are claimed.
        tier: how much is checked: "quick", "full" or "exhaustive".
        device: the torch device that the implementation computes on.
        conventions: by key, such as {"empty-row": "nan"}.
        deadline: seconds for a small call of a target that is given as a string; None: 60.
        memory: what such a target may allocate, such as "8G" or a number of bytes; None: half of what is free.
    """
    given = (target, clauses, dtypes, tier, device, conventions, deadline, memory)
    return pytest.mark.parametrize(ARGUMENT, ClauseChecks(given))


@dataclass(frozen=True, eq=False)
class ClauseCheck:
    """One clause in one dtype, for one implementation.

    Attributes:
        clause: its id, such as `masks.bool`.
        level: MUST, SHOULD or MAY.
        statement: the sentence that has to hold.
    """

    clause: str
    dtype: str
    level: str
    statement: str = field(repr=False)
    _checks: ClauseChecks = field(repr=False)

    def check(self) -> None:
        """Runs the clause.

        Raises:
            pytest.fail.Exception: the clause is a MUST, and does not hold. No traceback is shown: the message has the
                statement, and the case that shows the failure.
            ClauseUndeterminedError: the clause could not be judged.
            pytest.skip.Exception: no case of it can be run with the implementation's sizes and masks, or none
                can prove anything in this half type.
            pytest.xfail.Exception: the clause is a SHOULD or a MAY, and does not hold.
        """
        __tracebackhide__ = True
        from attention_conformance.tests.report.verdict import Status

        verdict = self._checks.judge(self)
        match verdict.status:
            case Status.NOT_CLAIMED | Status.NOT_PROVABLE:
                pytest.skip(verdict.reason)
            case Status.ERROR | Status.NOT_FINISHED:
                raise ClauseUndeterminedError(f"{self.clause} in {self.dtype}: {verdict.reason}")
            case Status.FAIL:
                message = self._checks.explain(self, verdict)
                if self.level != "MUST":
                    pytest.xfail(message)
                pytest.fail(message, pytrace=False)


@dataclass(eq=False)
class ClauseChecks(Sequence[Any]):
    """The parameters of a test, a `pytest.param` each; the target is loaded when they are first looked at.

    Attributes:
        arguments: of `parametrize_with_clauses`, in its order.
        reduced: whether a failure of this run has been reduced to its smallest case, which takes seconds.
    """

    arguments: tuple[Target, Names, Names, str, str, Mapping[str, str] | Conventions, float | None, str | int | None]
    reduced: bool = False

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._parameters[index]

    def __len__(self) -> int:
        return len(self._parameters)

    @cached_property
    def given(self) -> Arguments:
        """The arguments, checked."""
        from attention_conformance.tests.harness.run.arguments import arguments

        try:
            given = arguments(*self.arguments)
        except (TypeError, ValueError) as error:
            raise pytest.Collector.CollectError(f"parametrize_with_clauses: {error}") from error
        for name, why in given.implementation.findings.items():
            warn(pytest.PytestWarning(f"{given.implementation.name} is judged in part: {name!r} {why}"), stacklevel=2)
        return given

    @cached_property
    def _parameters(self) -> list[Any]:
        return [self._parameter(each.clause, each.dtype) for each in self.given.selection.plan()]

    def _parameter(self, clause: Clause, dtype: str) -> Any:
        entries, device = self.given.implementation.expected_failures, self.given.settings.device
        reasons = [f"{each.reason} {each.link}" for each in entries if each.shows(clause.id, dtype, device)]
        marks = [pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason=why) for why in reasons[:1]]
        claims = self.given.implementation.claims
        level = clause.level_for(claims.dtypes, claims.features)
        check = ClauseCheck(clause.id, dtype, str(level), clause.statement, self)
        return pytest.param(check, id=f"{clause.id}-{dtype}", marks=marks)

    def judge(self, check: ClauseCheck) -> Verdict:
        """The verdict, regardless of expected failures: these are marks of pytest here."""
        from attention_conformance.spec.clauses import load
        from attention_conformance.tests.harness.judge.clause_tests import clause_tests
        from attention_conformance.tests.harness.judge.judging import judged

        implementation = replace(self.given.implementation, expected_failures=())
        judge = self.given.settings.judge(implementation, check.dtype)
        return judged(load()[check.clause], clause_tests()[check.clause], judge)

    def explain(self, check: ClauseCheck, verdict: Verdict) -> str:
        """The statement, the message, and for the first failure of a run its smallest case with the numbers."""
        text = [
            f"{check.clause} ({check.level}): {check.statement}",
            f"{verdict.implementation} in {check.dtype}: {verdict.message}",
            f"{verdict.failed} of {verdict.checks} checks fail",
        ]
        if not self.reduced:
            self.reduced = True
            text += self._smallest(verdict)
        return "\n  ".join(text)

    def _smallest(self, verdict: Verdict) -> list[str]:
        from attention_conformance.tests.harness.explain.failure_artifacts import explained
        from attention_conformance.tests.harness.explain.reduction import lines

        artifacts = next(explained([self.given.implementation], [verdict], self.given.settings, {}))
        return [] if artifacts.counterexample is None else list(lines(artifacts.counterexample))
