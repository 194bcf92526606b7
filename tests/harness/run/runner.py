"""Runs conformance tests on an implementation in this process, without pytest."""

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.tests.harness.judge.clause_tests import Selection
from attention_conformance.tests.harness.judge.judging import judged
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.report.verdict import Verdict


def run(
    implementation: Implementation,
    clauses: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = (),
    tier: str = "quick",
    device: str = "cpu",
) -> list[Verdict]:
    """The verdicts of every claimed clause that a pattern names, in every dtype named; empty: all of them."""
    settings = RunSettings(tier=tier, device=device)
    plan = Selection((implementation,), clauses, dtypes).plan()
    return [judged(each.clause, each.test, settings.judge(each.implementation, each.dtype)) for each in plan]
