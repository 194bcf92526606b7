"""Search: hypothesis draws cases at random, and shrinks the one that fails."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attention_conformance.implementations.api.contract import Claims, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.spec.covering import allowed_values, combinations, combined, mended
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.harness.judge.tally import Counts, Tally

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

EXTENTS = {"batch": 4, "num_heads": 4, "query_length": 40, "key_length": 70, "d_k": 20, "d_v": 20}
"""The largest extent drawn for each size; 1 is the smallest."""


def cases(claims: Claims) -> SearchStrategy[Case]:
    """Any combination of sizes and of the options that are claimed."""
    from hypothesis import strategies as st

    live = allowed_values(lambda case: not isinstance(fit(case, claims), Unsupported))
    drawn = {name: st.sampled_from(levels) for name, levels in live.items()}
    drawn["sizes"] = st.builds(Sizes, **{name: st.integers(1, most) for name, most in EXTENTS.items()})
    return st.fixed_dictionaries({**drawn, "seed": st.integers(0, 999)}).map(combined)


def claimed_combinations(judge: Judge, strength: int = 2) -> tuple[Case, ...]:
    """The cases of the covering array, of the options that are claimed."""
    return combinations(lambda case: not isinstance(fit(case, judge.claims), Unsupported), judge.conventions, strength)


SEEDS = 50
"""So many masks are tried for one that leaves each query a key."""


def leaving_keys(judge: Judge, case: Case) -> Case:
    """The case with a seed by which all masks leave each query a key: two answers would be right otherwise."""
    seeds = (replace(case, seed=case.seed + n) for n in range(SEEDS))
    return next(c for c in seeds if allowed_keys(judge.problem(c), judge.conventions).any(-1).all())


def search(judge: Judge, examples: int) -> None:
    """Runs `examples` drawn cases; a failing one is shrunk, and recorded once in its smallest form."""
    if examples == 0:
        return
    judge.settle()
    from hypothesis import HealthCheck, Phase, given, seed, settings  # the quick tier does not need this slow import
    from hypothesis.errors import Flaky

    @seed(judge.tier.seed)
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(judge.claims))
    def holds(case: Case) -> None:
        fitted = fit(mended(case, judge.conventions), judge.claims)
        if not isinstance(fitted, Unsupported):
            # Hypothesis would treat the end of a test at its failure limit as one more failure.
            attempt = replace(judge, counts=Counts(), failure_limit=None)
            attempt.assert_conforms(fitted, *judge.parts())
            judge.counts.tally += attempt.tally.without_failures()
            if attempt.tally.failures:
                failing.append(attempt.tally)
            assert not attempt.tally.failures

    failing: list[Tally] = []
    try:
        holds()
    except (AssertionError, Flaky):  # flaky: the same case fails once and holds once
        smallest = failing[-1]
        judge.counts.tally += Tally(smallest.failed, worst=smallest.worst, failures=smallest.failures)
        judge.end_at_limit()
