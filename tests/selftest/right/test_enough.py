"""Enough to judge by: of each clause on what servers run two right implementations, of each such chapter 15 defects."""

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.catalogue import BUILTIN, NAMED, ON_REQUEST
from attention_conformance.implementations.defects import catalogue
from attention_conformance.spec.clauses import specification
from attention_conformance.tests.harness.judge.clause_tests import claimed
from attention_conformance.tests.selftest.right.test_right import CHAPTERS

SERVED = ("cache", "packed", "positions", "head-gates", "merge", "qk-norm", "rotary-tables")
STORED = ("paged", "quantised", "bucketed-bias", "latent")
LEAST_DEFECTS = 15


@pytest.mark.parametrize("chapter", [*SERVED, *STORED])
def test_a_chapter_has_enough_to_be_judged_by(chapter: str) -> None:
    right = {name: implementations for name, implementations, *_ in CHAPTERS}
    own: list[Implementation] = [*BUILTIN, *ON_REQUEST, *NAMED, *right.get(chapter, ())]
    for clause in specification()[chapter].clauses:
        holding = {each.name for each in own if not claimed(clause, each.claims)}
        assert len(holding) >= 2, f"{clause.id}: {sorted(holding)}"
    assert sum(defect.chapter == chapter for defect in catalogue()) >= LEAST_DEFECTS
