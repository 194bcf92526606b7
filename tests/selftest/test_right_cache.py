"""Right caches pass every clause of their chapter, however they keep what they keep."""

from __future__ import annotations

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.inhouse.cached import CACHED
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.right_cache import RIGHT


@pytest.mark.parametrize("right", [*RIGHT, *CACHED], ids=lambda right: right.name)
def test_is_not_accused(right: Implementation) -> None:
    verdicts = run(right, ("cache.*", "causal.*"))
    accused = [v for v in verdicts if v.status is not Status.PASS]
    assert not accused, "\n".join(f"{v.clause} in {v.dtype}: {v.failure or v.reason}" for v in accused)
    assert sum(v.checks for v in verdicts) > 200
