"""Right weights and log-sum-exps pass everything that is claimed of them, however they come about."""

from __future__ import annotations

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.right_returned import RIGHT


@pytest.mark.parametrize("implementation", RIGHT, ids=lambda each: each.name)
def test_is_not_accused(implementation: Implementation) -> None:
    clauses = ("returned.*", "softmax.weights", "softmax.log-sum-exp", "relations.merge")
    verdicts = run(implementation, clauses)
    accused = [v for v in verdicts if v.status is not Status.PASS]
    assert not accused, "\n".join(f"{v.clause} in {v.dtype}: {v.failure or v.reason}" for v in accused)
    assert len({v.clause for v in verdicts}) >= 10
