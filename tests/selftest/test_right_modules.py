"""Right implementations of head gates and modules pass what they claim, in whatever way they do it."""

from __future__ import annotations

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.tests.harness.judge.judging import HALVES
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.selftest.right_modules import RIGHT_GATES, RIGHT_MODULES


@pytest.mark.parametrize("implementation", RIGHT_GATES, ids=lambda each: each.name)
def test_gates_are_not_accused(implementation: Implementation) -> None:
    _assert_not_accused(run(implementation, ("head-gates.*",)), 80)


@pytest.mark.parametrize("implementation", RIGHT_MODULES, ids=lambda each: each.name)
def test_modules_are_not_accused(implementation: Implementation) -> None:
    _assert_not_accused(run(implementation, ("modules.*",)), 100)


def _assert_not_accused(verdicts: list[Verdict], checks: int) -> None:
    accused = [v for v in verdicts if v.status is not Status.PASS and not _undecided(v)]
    assert not accused, "\n".join(f"{v.clause} in {v.dtype}: {v.failure or v.reason}" for v in accused)
    assert max(v.worst or 0.0 for v in verdicts) < 1.0
    assert sum(v.checks for v in verdicts) > checks


def _undecided(verdict: Verdict) -> bool:
    """All bounds of a half type were too wide."""
    return verdict.status is Status.NOT_CLAIMED and verdict.dtype in HALVES
