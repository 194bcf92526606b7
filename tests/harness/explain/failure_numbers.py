"""Showing: failures and attention weights as numbers that a view can draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attention_conformance.implementations.api.contract import Implementation, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.explain.failure_artifacts import FOLDER, Explained
from attention_conformance.tests.harness.explain.reduction import Outcome
from attention_conformance.tests.harness.judge.comparison import error_ratios
from attention_conformance.tests.harness.judge.judge import TIERS, Judge
from attention_conformance.tests.harness.judge.settings import RunSettings
from attention_conformance.tests.report.model import Grid, Shown, WeightMap

LONGEST = 64
"""So many keys are changed at most to see weights from outside: each takes a call."""
RETURNED, SEEN = "returned", "seen by changing one value at a time"
SAMPLE = Case(seed=101, score_std=2.0, causal=True).sized(batch=1, num_heads=4, query_length=10, key_length=10, d_k=8)
"""The case whose weights are shown of every implementation."""


def shown(made: Explained, implementation: Implementation, setting: RunSettings, again: str) -> Shown:
    """A failure, with the numbers of its smallest case where it was reduced."""
    file, found = made.file, made.found
    plain = Shown(
        clause=made.verdict.clause,
        implementation=made.verdict.implementation,
        dtype=file.dtype,
        case=str(file.case),
        message=file.message if found is None else found.outcome.comparison.message,
        part=file.part,
        without=made.without if found is None else "",
        script=made.script,
        replay="" if setting.report is None else f"{FOLDER}/{file.name}.json",
        again=again,
    )
    if found is None:
        return plain
    judge = Judge(implementation, file.dtype, setting.device, TIERS[setting.tier])
    return _with_numbers(plain, found.outcome, judge)


def _with_numbers(plain: Shown, outcome: Outcome, judge: Judge) -> Shown:
    problem, expected, got = outcome.problem, outcome.expected, outcome.got
    numbers = {name: Grid.of(array) for name, array in problem.arrays().items()}
    same_shape = expected is not None and got is not None and got.shape == expected.value.shape
    ratio = error_ratios(got.astype(np.float64), expected) if same_shape and expected and got is not None else None
    wanted, seen, _ = _weights(judge, problem)
    return Shown(
        **{
            **vars(plain),
            "arrays": numbers,
            "expected": None if expected is None else Grid.of(expected.value),
            "got": None if got is None else Grid.of(got),
            "ratio": None if ratio is None else Grid.of(ratio),
            "expected_weights": wanted,
            "seen_weights": seen,
        }
    )


def weight_map(implementation: Implementation, device: str) -> WeightMap:
    """The weights of every head on one small case, causal where that is claimed."""
    claims = implementation.claims
    dtype = claims.dtypes[0] if claims.dtypes else "float32"
    case = fit(replace(SAMPLE, causal=Feature.CAUSAL in claims), claims)
    if isinstance(case, Unsupported):
        return WeightMap(implementation.name, dtype, str(SAMPLE), case.reason)
    judge = Judge(implementation, dtype, device)
    wanted, seen, how = _weights(judge, judge.problem(case).forward_only())
    return WeightMap(implementation.name, dtype, str(case), how, wanted, seen)


def _weights(judge: Judge, problem: Problem) -> tuple[Grid | None, Grid | None, str]:
    """Those of the reference; those of the candidate, of the first sample; and how they were had, or why not."""
    question = problem.forward_only()
    wanted = solve(question, judge.conventions).parts["weights"].value
    seen, how = _guarded(judge, question)
    if seen is not None and seen.shape != wanted.shape:
        how = f"they have shape {seen.shape}, expected {wanted.shape}"
        seen = None
    return Grid.of(wanted[0]) if wanted.size else None, None if seen is None else Grid.of(seen[0]), how


def _guarded(judge: Judge, problem: Problem) -> tuple[Array | None, str]:
    try:
        return _seen(judge, problem)
    except Exception as error:  # whatever a broken candidate does here, its failure is already recorded
        return None, f"it raised {type(error).__name__}"


def _seen(judge: Judge, problem: Problem) -> tuple[Array | None, str]:
    if Feature.WEIGHTS in judge.claims:
        return judge.run(problem).weights, RETURNED
    if problem.scope is not Scope.OP:
        return None, "it returns none, and projections hide them"
    if not 0 < problem.key.shape[-2] <= LONGEST:
        return None, "too many keys to see them from outside"
    return _from_outside(problem, judge.run), SEEN


def _from_outside(problem: Problem, ask: Callable[[Problem], Result]) -> Array:
    """(B, H, Lq, Lk): the output is linear in the values, so that a single value of 1 shows its weight."""
    columns = []
    for key in range(problem.key.shape[-2]):
        value = np.zeros_like(problem.value)
        value[..., key, :] = 1
        columns.append(ask(problem.with_arrays({"value": value})).output.astype(np.float64)[..., 0])
    return np.stack(columns, axis=-1)
