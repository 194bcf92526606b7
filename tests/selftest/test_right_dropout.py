"""Right dropout passes everything that it claims of chapter 17, however it draws and wherever it puts the factor."""

from __future__ import annotations

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.right_dropout import RIGHT


@pytest.mark.parametrize("implementation", RIGHT, ids=lambda each: each.name)
def test_is_not_accused(implementation: Implementation) -> None:
    verdicts = run(implementation, ("dropout.*",))
    accused = [v for v in verdicts if v.status is not Status.PASS]
    assert not accused, "\n".join(f"{v.clause} in {v.dtype}: {v.failure or v.reason}" for v in accused)
    assert len({v.clause for v in verdicts}) >= 9
