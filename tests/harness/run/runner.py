"""Running: the conformance tests asked of implementations in this process, without pytest."""

from __future__ import annotations

from collections.abc import Iterator

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.spec.clauses import load
from attention_conformance.tests.harness.judge.clause_tests import Selection, clause_marks, clause_tests
from attention_conformance.tests.harness.judge.judge import TIERS, Judge
from attention_conformance.tests.harness.judge.judging import judged
from attention_conformance.tests.report.verdict import Verdict


def run(
    implementation: Implementation,
    clauses: tuple[str, ...] = (),
    dtypes: tuple[str, ...] = (),
    tier: str = "quick",
    device: str = "cpu",
) -> list[Verdict]:
    """The verdicts of every claimed clause that a pattern names, in every dtype named; empty: all of them."""
    return list(_verdicts(Selection((implementation,), clauses, dtypes), tier, device))


def _verdicts(selection: Selection, tier: str, device: str) -> Iterator[Verdict]:
    for identifier, test in clause_tests().items():
        clause = load()[identifier]
        for implementation, dtype in selection.subjects(clause, clause_marks()[identifier]):
            yield judged(clause, test, Judge(implementation, dtype, device, TIERS[tier]))
