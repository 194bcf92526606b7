"""The mutation score counts kills, and reports what is wrong with defects and clauses."""

import math
from dataclasses import replace

import numpy as np
import pytest

from attention_conformance.implementations.defects import catalogue
from attention_conformance.tests.harness.judge.clause_tests import clause_tests
from attention_conformance.tests.measurements import half_alone, mutation_score
from attention_conformance.tests.measurements.mutation_score import WIDEST, Kill, Outcome

(DEFECT,) = (defect for defect in catalogue() if defect.id == "next-position-seen")
CLAUSES = tuple(clause_tests())


def result(name: str, *clauses: str, margin: float = 1e6, failed: int = 2) -> Outcome:
    kills = tuple(Kill(clause, "float64", failed, margin) for clause in clauses)
    return Outcome(name, kills, 0.1, frozenset(), name)


def complained(each: Outcome) -> list[str]:
    everywhere = result("another", *CLAUSES)
    return list(mutation_score.complaints([DEFECT], {DEFECT.id: each, "another": everywhere}))


def test_a_defect_is_judged_and_named() -> None:
    each = mutation_score.outcome(DEFECT.implementation, "quick", WIDEST)
    assert set(DEFECT.clauses) <= set(each.clauses)
    assert each.diagnosis == DEFECT.id
    assert "causal=True" in each.needs
    assert each.margin(DEFECT.clauses[0]) > 1e6
    assert each.first is not None


def test_a_killed_defect_is_no_complaint() -> None:
    assert complained(result(DEFECT.id, "causal.square")) == []


@pytest.mark.parametrize(
    ("each", "complaint"),
    [
        (result(DEFECT.id), "survives"),
        (result(DEFECT.id, "masks.bool"), "killed by other chapters than causal only"),
        (result(DEFECT.id, "causal.square", failed=1), "killed by one check only"),
        (replace(result(DEFECT.id, "causal.square"), errors=("x in float64: y",)), "x in float64: y"),
    ],
)
def test_complaints_of_a_defect(each: Outcome, complaint: str) -> None:
    assert complained(each) == [f"{DEFECT.id}: {complaint}"]


def test_complaints_of_clauses() -> None:
    weak = result(DEFECT.id, *CLAUSES[1:], margin=9.0)
    lines = list(mutation_score.complaints([DEFECT], {DEFECT.id: weak}))
    assert f"{CLAUSES[0]}: no defect breaks it" in lines
    assert f"{CLAUSES[1]}: no defect breaks it by more than 10 times the bound" in lines


def test_clauses_that_nothing_replaces() -> None:
    first, second = result("first", "masks.bool"), result("second", "masks.bool", "causal.square")
    assert mutation_score.sole_kills([first, second]) == {"masks.bool": 1}
    assert mutation_score.smallest_set([first, second], 1) == ["masks.bool"]
    assert set(mutation_score.smallest_set([first, second], 2)) == {"masks.bool", "causal.square"}


def test_options_that_nothing_replaces() -> None:
    each = replace(result("first", "masks.bool"), needs=frozenset({"mask=bool"}))
    assert mutation_score.needed([each, result("second", "causal.square")]) == {"mask=bool": ["first"]}


def test_pairs_have_two_different_mistakes_and_fail() -> None:
    drawn = mutation_score.pairs(5)
    assert drawn == mutation_score.pairs(5)
    assert all(not set(first.replaced) & set(second.replaced) for first, second in drawn)
    assert mutation_score.outcome(mutation_score.both(*drawn[0]), "quick", WIDEST).kills


def test_a_kill_where_one_half_type_is_all_that_is_claimed() -> None:
    chosen = [defect for defect in catalogue() if defect.id in ("no-scale", "softmax-in-float32")]
    assert half_alone.names_alone(chosen, "bfloat16") == ["no-scale"]  # the other is of precision
    assert half_alone.change_if_alive("no-scale", "bfloat16") is None


def test_the_score_counts_what_changes_an_answer() -> None:
    changes = {"killed": None, "alive": 0.5, "without a partner": math.inf, "as if right": 0.004}
    assert half_alone.score(changes) == (
        "1 of 3, alive survives, without a partner survives; below 1% of the norm: as if right (0.40%)"
    )


def test_a_change_is_a_part_of_the_norm() -> None:
    right = np.array([3.0, 4.0, np.inf, np.nan])
    assert half_alone.part_of_norm([(right, right)]) == 0.0
    assert half_alone.part_of_norm([(right + np.array([0.0, 0.5, 0.0, 0.0]), right)]) == pytest.approx(0.1)
    assert half_alone.part_of_norm([(np.array([np.nan]), np.array([1.0]))]) == math.inf
