"""Right implementations of head gates and modules pass what they claim, in whatever way they do it."""

from __future__ import annotations

import pytest

from implementations.contract import Implementation
from tests.harness.judging import HALVES
from tests.harness.running import run
from tests.harness.verdicts import Status, Verdict
from tests.selftest.right_modules import RIGHT_GATES, RIGHT_MODULES


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
