"""Right implementations pass everything that they claim, however unusual their style is."""

from __future__ import annotations

import pytest

from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.right import RIGHT, Right


@pytest.mark.parametrize("right", RIGHT, ids=str)
def test_is_not_accused(right: Right) -> None:
    verdicts = run(right.implementation)
    accused = [v for v in verdicts if v.status is not Status.PASS and v.clause not in right.advice]
    assert not accused, "\n".join(f"{v.clause} in {v.dtype}: {v.failure or v.reason}" for v in accused)
    assert sum(v.checks for v in verdicts) > 1000
