"""The budget of a run: what is checked first, when nothing more is begun, and what is reported of the rest."""

import time
from collections.abc import Sequence

import pytest
import torch

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Claims, Implementation
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.implementations.defects import catalogue
from attention_conformance.spec.clauses import load
from attention_conformance.spec.features import Scope
from attention_conformance.tests.harness.judge.call_time import BudgetSpentError
from attention_conformance.tests.harness.judge.clause_tests import PlannedCheck, Selection, clause_tests
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.judging import judged
from attention_conformance.tests.harness.run.plan.budget import Budget, in_order, left_out, worth, worths

RIGHT = Implementation("right", Claims(Scope.OP, OP_FEATURES, dtypes=("float32", "bfloat16")), torch_op(Steps()))
PLANNED = list(Selection((RIGHT,)).plan())
CLAUSE = "scores.dot-product"


def test_what_was_measured_is_still_so() -> None:
    """Of clauses and mistakes that came later nothing is known: `measurements.clause_costs` measures all again."""
    assert {*worths()} <= {*clause_tests()}
    assert all(worths()[c].defects <= {d.id for d in catalogue() if c in d.clauses} for c in worths())
    assert worth("no.such-clause").tiles == 1


def test_what_detects_most_for_its_cost_comes_first_and_wider_dtypes_before_narrower_ones() -> None:
    ordered = in_order(PLANNED)
    assert sorted(map(id, ordered)) == sorted(map(id, PLANNED))
    dtypes = [each.dtype for each in ordered]
    assert dtypes == sorted(dtypes, reverse=True)  # float32, bfloat16
    assert detected(ordered) > 1.4 * detected(PLANNED)


def detected(order: Sequence[PlannedCheck]) -> int:
    """Mistakes that clauses detect in this order until they have cost a twentieth of all."""
    clauses = [each.clause.id for each in order if each.dtype == "float32"]
    left = sum(worth(clause).tiles for clause in clauses) / 20
    found = set[str]()
    for clause in clauses:
        left -= worth(clause).tiles
        if left < 0:
            break
        found |= worth(clause).defects
    return len(found)


def test_nothing_is_begun_that_would_end_too_late() -> None:
    now = 100.0
    budget = Budget(10.0, since=100.0, clock=lambda: now)
    assert budget.fits("shapes.large")  # nothing is known of its speed
    budget.spent(CLAUSE, 1.0)
    assert budget.fits(CLAUSE)
    assert not budget.fits("shapes.large")
    now = 109.5
    assert not budget.fits(CLAUSE)


def test_no_call_begins_when_the_time_is_over() -> None:
    judge = Judge(RIGHT, "float32", until=time.monotonic() - 1.0)
    with pytest.raises(BudgetSpentError):
        judged(load()[CLAUSE], clause_tests()[CLAUSE], judge)
    assert judge.tally.checks == 0


def test_a_failure_before_the_end_is_a_verdict() -> None:
    def slow(*inputs: torch.Tensor, **options: object) -> torch.Tensor:
        time.sleep(0.05)
        return torch.zeros_like(inputs[0])

    wrong = Implementation("wrong", RIGHT.claims, torch_op(slow))
    judge = Judge(wrong, "float32", until=time.monotonic() + 0.04)
    assert judged(load()[CLAUSE], clause_tests()[CLAUSE], judge).failed == 1


def test_what_was_left_out_is_named_with_what_the_rest_detects() -> None:
    done = [("right", each.clause.id, each.dtype) for each in PLANNED if each.clause.chapter != "shapes"]
    text = left_out(PLANNED, done, 30.0)
    assert f"after {len(done)} of {len(PLANNED)} checks" in text
    shapes = {each.clause.id for each in PLANNED if each.clause.chapter == "shapes"}
    assert text.endswith(f"left out: {len(shapes)} of shapes")
    every = [("right", each.clause.id, each.dtype) for each in PLANNED]
    assert left_out(PLANNED, every, 30.0) == ""
    wide = {clause for _, clause, dtype in every if dtype == "float32"}
    done = [key for key in every if key[2] == "float32" or key[1] not in wide]
    assert "left out: some dtypes of " in left_out(PLANNED, done, 30.0)
