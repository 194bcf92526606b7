"""Right implementations of sinks and further keys pass what they claim, whatever formula they use."""

from __future__ import annotations

import pytest

from implementations.contract import Implementation
from tests.harness.running import run
from tests.harness.verdicts import Status
from tests.selftest.right_sinks import RIGHT_SINKS


@pytest.mark.parametrize("implementation", RIGHT_SINKS, ids=lambda each: each.name)
def test_is_not_accused(implementation: Implementation) -> None:
    verdicts = run(implementation, ("sinks.*",))
    accused = [v for v in verdicts if v.status is not Status.PASS]
    assert not accused, "\n".join(f"{v.clause} in {v.dtype}: {v.failure or v.reason}" for v in accused)
    assert sum(v.checks for v in verdicts) > 60
