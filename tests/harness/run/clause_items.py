"""The items of a session: one for each clause, implementation and dtype, and how a verdict becomes their outcome."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attention_conformance.implementations.worker.remote import printed_by
from attention_conformance.spec.cases import Case
from attention_conformance.spec.clauses import Level, load
from attention_conformance.tests.harness.judge.call_time import BudgetSpentError
from attention_conformance.tests.harness.judge.clause_tests import PlannedCheck
from attention_conformance.tests.harness.judge.judging import judged
from attention_conformance.tests.harness.run.plan.budget import LEFT_OUT
from attention_conformance.tests.harness.run.screen.command_lines import again
from attention_conformance.tests.harness.run.second_judge import SHARED
from attention_conformance.tests.harness.run.session import KEY, PROPERTY
from attention_conformance.tests.report.log import encode
from attention_conformance.tests.report.verdict import Status, Verdict


class DoesNotConformError(Exception):
    """A clause does not hold; the message is all there is to read."""


class ClauseItem(pytest.Function):
    """One clause, checked on one implementation in one dtype."""

    planned: PlannedCheck
    line: int
    """Where the clause stands in the file, counted from 0."""

    def runtest(self) -> None:
        shared = self.config.stash.get(SHARED, None)
        known = None if shared is None else shared.verdict(self.planned)
        verdict, printed = known or (self._verdict(), printed_by(self.planned.implementation))
        if printed:
            self.add_report_section("call", "stdout", printed)
        self.user_properties.append((PROPERTY, encode(verdict)))
        conclude(verdict)

    def _verdict(self) -> Verdict:
        """Of the clause, as far as there is time; where there is none, the item is skipped."""
        planned, state, start = self.planned, self.config.stash[KEY], time.monotonic()
        if not state.budget.fits(planned.clause.id):
            pytest.skip(LEFT_OUT)
        try:
            judge = state.settings.judge(planned.implementation, planned.dtype, state.budget.until)
            verdict = judged(planned.clause, planned.test, judge)
        except BudgetSpentError:
            pytest.skip(LEFT_OUT)
        state.budget.spent(planned.clause.id, time.monotonic() - start)
        return verdict

    def repr_failure(  # type: ignore[override]  # as pytest.Function has it, one argument less than Node
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> Any:
        if isinstance(excinfo.value, DoesNotConformError):
            planned, session = self.planned, self.config.stash[KEY]
            names = (planned.implementation.name, planned.clause.id, planned.dtype)
            return f"{excinfo.value}\n  again: {again(session.settings, session.recorder.targets, *names)}"
        if isinstance(excinfo.value, pytest.xfail.Exception):
            return str(excinfo.value)  # nobody reads the traceback, and pytest parses source for it
        return super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.line, self.name


def conclude(verdict: Verdict) -> None:
    """Turns a verdict into the outcome of a pytest item.

    Raises:
        DoesNotConformError: a MUST does not hold, or the suite could not judge.
    """
    match verdict.status:
        case Status.NOT_CLAIMED | Status.NOT_PROVABLE:
            pytest.skip(verdict.reason)
        case Status.EXPECTED_FAILURE:
            pytest.xfail(f"{verdict.reason} {verdict.link}")
        case Status.ERROR | Status.NOT_FINISHED:
            raise DoesNotConformError(f"{verdict.clause}: {verdict.reason}")
        case Status.FAIL:
            if verdict.level != Level.MUST:
                pytest.xfail(f"{verdict.level}: {verdict.message}")
            raise DoesNotConformError(_explained(verdict))


def _explained(verdict: Verdict) -> str:
    assert verdict.failure is not None
    clause, case = load()[verdict.clause], Case.from_json(verdict.failure.case)
    return (
        f"{verdict.clause} ({verdict.level}): {clause.statement}\n"
        f"  {verdict.implementation} in {verdict.dtype}: {verdict.failure.message}\n"
        f"  {verdict.failed} of {verdict.checks} checks fail; the plainest case: {case}"
    )


class ClauseModule(pytest.Module):
    """The clause tests of one chapter, imported by their name in the package."""

    def collect(self) -> Iterator[pytest.Item]:
        session = self.config.stash[KEY]
        session.has_chapters = True
        lines = self.path.read_text(encoding="utf-8").splitlines()
        for planned in session.selection.plan(self.path.stem.removeprefix("test_").replace("_", "-")):
            name = f"{planned.clause.id}[{planned.implementation.name}-{planned.dtype}]"
            item: ClauseItem = ClauseItem.from_parent(self, name=name, callobj=_takes_nothing)
            item.planned = planned
            item.line = next(number for number, text in enumerate(lines) if f'"{planned.clause.id}"' in text)
            yield item


def _takes_nothing() -> None:
    """Never called: pytest reads fixtures off its signature, and the judge is none, as `runtest` hands it over."""
