"""Right implementations pass everything that they claim, however unusual their style is."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from attention_conformance.implementations.api.contract import Implementation
from attention_conformance.implementations.builtin.inhouse.cached import CACHED
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import DTYPES, HALF
from attention_conformance.tests.harness.run.runner import run
from attention_conformance.tests.report.verdict import Status, Verdict
from attention_conformance.tests.selftest.right import (
    right,
    right_bucketed_bias,
    right_cache,
    right_dropout,
    right_latent,
    right_merge,
    right_modules,
    right_packed,
    right_paged,
    right_positions,
    right_qk_norm,
    right_quantised,
    right_reach,
    right_returned,
    right_rotary_tables,
    right_sinks,
)
from attention_conformance.tests.selftest.thorough import OPTION, thorough

SLOW = ("online-1", "merged-5")
"""Styles that go key by key, or merge part by part, as faster ones do with more keys at once."""
REACH = {Feature.GROUPED: "grouped.*", Feature.WINDOW: "window.*", Feature.SOFTCAP: "softcap.*"}
RETURNED = ("returned.*", "softmax.weights", "softmax.log-sum-exp", "relations.merge")
SPREAD = ("gradients.key", "gradients.masked", "gradients.cotangent", "numerics.bound", "masks.no-influence")
CHAPTERS = (
    ("bucketed-bias", right_bucketed_bias.RIGHT, ("bucketed-bias.*",), 30),
    ("cache", (*right_cache.RIGHT, *CACHED), ("cache.*", "causal.*"), 200),
    ("dropout", right_dropout.RIGHT, ("dropout.*",), 100),
    ("gradients", right.SHIFTED, SPREAD, 60),
    ("head-gates", right_modules.RIGHT_GATES, ("head-gates.*",), 80),
    ("latent", right_latent.RIGHT, ("latent.*",), 60),
    ("merge", right_merge.RIGHT, ("merge.*",), 180),
    ("modules", right_modules.RIGHT_MODULES, ("modules.*",), 100),
    ("packed", right_packed.RIGHT, ("packed.*", "causal.*"), 300),
    ("paged", right_paged.RIGHT, ("paged.*",), 190),
    ("positions", right_positions.RIGHT_POSITIONS, ("positions.*",), 60),
    ("qk-norm", right_qk_norm.RIGHT, ("qk-norm.*", "scores.*"), 60),
    ("quantised", right_quantised.RIGHT, ("quantised.*",), 40),
    ("rotary-tables", right_rotary_tables.RIGHT, ("rotary-tables.*",), 30),
    ("returned", right_returned.RIGHT, RETURNED, 250),
    ("sinks", right_sinks.RIGHT_SINKS, ("sinks.*",), 60),
)
"""The right implementations of some chapters, the clauses that they are run on, and how many checks these take."""


def _runs() -> Iterator[Any]:
    for each in right.RIGHT:
        marks = thorough if each.name in SLOW else ()
        yield pytest.param(each, (), 1000, right.ADVICE.get(each.name, ()), id=f"core-{each.name}", marks=marks)
    for each in right_reach.RIGHT:
        clauses = tuple(pattern for feature, pattern in REACH.items() if feature in each.claims)
        yield pytest.param(each, clauses, 80, right_reach.ADVICE.get(each.name, ()), id=f"reach-{each.name}")
    for chapter, implementations, clauses, checks in CHAPTERS:
        for implementation in implementations:
            advice = (right_qk_norm.WITHOUT | right_quantised.WITHOUT).get(implementation.name, ())
            yield pytest.param(implementation, clauses, checks, advice, id=f"{chapter}-{implementation.name}")


@pytest.fixture
def dtypes(request: pytest.FixtureRequest, implementation: Implementation) -> tuple[str, ...]:
    """One dtype of all, by turns: the styles are many, and share their arithmetic; or each with `--thorough`."""
    every = tuple(dtype for dtype in DTYPES if dtype in implementation.claims.dtypes)
    if len(every) < len(DTYPES) or request.config.getoption(OPTION):
        return every
    return (every[crc32(request.node.name.encode()) % len(every)],)


@pytest.mark.parametrize(("implementation", "clauses", "checks", "advice"), list(_runs()))
def test_is_not_accused(
    implementation: Implementation,
    clauses: tuple[str, ...],
    checks: int,
    advice: tuple[str, ...],
    dtypes: tuple[str, ...],
) -> None:
    """`advice` names clauses that the style cannot follow (SHOULD), or that need an input it has not."""
    verdicts = run(implementation, clauses, dtypes)
    accused = [v for v in verdicts if v.status is not Status.PASS and v.clause not in advice and not _undecided(v)]
    assert not accused, "\n".join(f"{v.clause} in {v.dtype}: {v.failure or v.reason}" for v in accused)
    assert {v.dtype for v in verdicts} == set(dtypes)
    # Half types have fewer, as the bounds of some are too wide.
    assert sum(v.checks for v in verdicts) > checks * len(_wide(dtypes)) / len(implementation.claims.dtypes)


def _wide(dtypes: Sequence[str]) -> list[str]:
    return [dtype for dtype in dtypes if dtype not in HALF]


def _undecided(verdict: Verdict) -> bool:
    """All bounds of a half type were too wide, which may be where gradients are differentiated again."""
    return verdict.status is Status.NOT_CLAIMED and verdict.dtype in HALF and verdict.clause.startswith("modules.")


def test_documents_one_by_one_contain_what_is_in_them() -> None:
    (one_by_one,) = (each for each in right_packed.RIGHT if each.name == "one-by-one")
    claims = replace(one_by_one.claims, features=one_by_one.claims.features | {Feature.CONTAINMENT})
    verdicts = run(replace(one_by_one, claims=claims), ("packed.containment",))
    assert [v.status for v in verdicts] == [Status.PASS] * 4
