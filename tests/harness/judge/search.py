"""Search: hypothesis draws cases that nobody wrote down, and shrinks the one that fails."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from attention_conformance.implementations.api.contract import Claims, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.spec.covering import allowed_values, combined, mended
from attention_conformance.tests.harness.judge.judge import Judge

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


def search(judge: Judge, examples: int) -> None:
    """Asks `examples` drawn cases; a failing one is shrunk, and recorded once in its smallest form."""
    if examples == 0:
        return
    from hypothesis import HealthCheck, Phase, given, settings  # no quick tier should wait for this import

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
            attempt = replace(judge, checks=0, inconclusive=0, failed=0, worst=None, failures=[], unsupported=[])
            attempt.squares, attempt.compared = 0.0, 0
            attempt.assert_conforms(fitted, *judge.parts())
            last.clear()
            last.append(attempt)
            _take_counts(judge, attempt)
            assert not attempt.failed

    last: list[Judge] = []
    try:
        holds()
    except AssertionError:
        judge.failures += last[0].failures
        judge.failed += last[0].failed
        judge.checks += last[0].failed
        judge.worst = max(judge.worst or 0.0, last[0].worst or 0.0)


def _take_counts(judge: Judge, attempt: Judge) -> None:
    judge.checks += attempt.checks - attempt.failed
    judge.inconclusive += attempt.inconclusive
    judge.squares, judge.compared = judge.squares + attempt.squares, judge.compared + attempt.compared
    if attempt.worst is not None and not attempt.failed:
        judge.worst = max(judge.worst or 0.0, attempt.worst)
