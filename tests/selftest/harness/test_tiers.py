"""Tiers with a seed: numbers are drawn anew, and by the same seed again."""

from dataclasses import replace

import pytest

from attention_conformance.implementations.api.contract import Result
from attention_conformance.implementations.builtin.sdpa import TORCH_OPS
from attention_conformance.spec.cases import Case
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.search import search
from attention_conformance.tests.harness.judge.tiers import MOST_SEED, seeded, tier_of
from attention_conformance.tests.harness.run.check import check

MATH = next(i for i in TORCH_OPS if i.name == "torch.sdpa.math")


def test_numbers_are_stored_or_those_of_the_seed() -> None:
    (stored,), (drawn,), (again,) = (Judge(MATH, "float64", tier=tier_of(t)).cases(Case()) for t in DRAWN)
    assert stored == Case()
    assert drawn == again != stored
    assert replace(drawn, seed=0) == stored


DRAWN = ("quick", "quick:7", "full:7")


def test_what_is_searched_is_always_drawn_anew() -> None:
    assert seeded("quick") == seeded("full", seed=0).replace("full", "quick") == "quick"
    assert seeded("quick", seed=7) == "quick:7"
    drawn = [tier_of(seeded(*given)).seed for given in (("full",), ("exhaustive",), ("quick", True))]
    assert all(0 < seed <= MOST_SEED for seed in drawn)
    assert len(set(drawn)) > 1


@pytest.mark.parametrize(
    "text", ["fast", "full:", "full:0", "full:-1", "full:x", f"full:{MOST_SEED + 1}", "full:9999999999"]
)
def test_other_tiers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="choose from: quick, full, exhaustive"):
        tier_of(text)


def test_a_search_follows_the_seed() -> None:
    def searched(text: str) -> list[str]:
        cases: list[str] = []

        def run(problem: Problem, device: str) -> Result:
            cases.append(str(problem.query.shape))
            return MATH.run(problem, device)

        search(Judge(replace(MATH, run=run), "float64", tier=tier_of(text)), 5)
        return cases

    assert searched("full:7") == searched("full:7") != searched("full:8")


def test_a_report_has_the_seed_in_its_views() -> None:
    report = check(MATH, clauses="values.single-key", dtypes="float64", seed=7)
    assert report.run.opening.suite.tier == "quick:7"
    for view in (str(report), report._repr_html_()):
        assert "--seed 7 draws them again" in view
