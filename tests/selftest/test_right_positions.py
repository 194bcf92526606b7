"""Right implementations of positions pass what they claim, whatever formula they use."""

from __future__ import annotations

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.right_positions import RIGHT_POSITIONS


@pytest.mark.parametrize("implementation", RIGHT_POSITIONS, ids=lambda each: each.name)
def test_is_not_accused(implementation: Implementation) -> None:
    verdicts = run(implementation, ("positions.*",))
    accused = [v for v in verdicts if v.status is not Status.PASS]
    assert not accused, "\n".join(f"{v.clause} in {v.dtype}: {v.failure or v.reason}" for v in accused)
    assert sum(v.checks for v in verdicts) > 60
