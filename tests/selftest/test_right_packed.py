"""Right implementations of packed documents pass every clause of their chapter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.spec.features import Feature
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.right_packed import RIGHT


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: right.name)
def test_is_not_accused(right: Implementation) -> None:
    verdicts = run(right, ("packed.*", "causal.*"))
    accused = [v for v in verdicts if v.status is not Status.PASS]
    assert not accused, "\n".join(f"{v.clause} in {v.dtype}: {v.failure or v.reason}" for v in accused)
    assert sum(v.checks for v in verdicts) > 300


def test_documents_one_by_one_contain_what_is_in_them() -> None:
    (right,) = (right for right in RIGHT if right.name == "one-by-one")
    promised = replace(right.claims, features=right.claims.features | {Feature.CONTAINMENT})
    verdicts = run(replace(right, claims=promised), ("packed.containment",))
    assert [v.status for v in verdicts] == [Status.PASS] * 4
