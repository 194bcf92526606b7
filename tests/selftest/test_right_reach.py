"""Right implementations of groups, windows and softcaps pass the clauses of their chapter in every dtype."""

from __future__ import annotations

import pytest

from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status
from attention_conformance.tests.selftest.right import Right
from attention_conformance.tests.selftest.right_reach import RIGHT


@pytest.mark.parametrize("right", RIGHT, ids=str)
def test_is_not_accused(right: Right) -> None:
    chapters = {Feature.GROUPED: "grouped.*", Feature.WINDOW: "window.*", Feature.SOFTCAP: "softcap.*"}
    patterns = tuple(pattern for feature, pattern in chapters.items() if feature in right.implementation.claims)
    verdicts = run(right.implementation, patterns)
    accused = [v for v in verdicts if v.status is not Status.PASS and v.clause not in right.advice]
    assert not accused, "\n".join(f"{v.clause} in {v.dtype}: {v.failure or v.reason}" for v in accused)
    assert {v.dtype for v in verdicts} == set(DTYPES)
    assert sum(v.checks for v in verdicts) > 80
