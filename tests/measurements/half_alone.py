"""Candidates that take one half type and nothing else: which defects are killed, and what the others change at most."""

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Implementation, Result
from attention_conformance.implementations.api.global_state import compute_on_one_thread
from attention_conformance.implementations.defects import Defect, catalogue
from attention_conformance.implementations.defects.breaking import in_steps
from attention_conformance.implementations.defects.defect import Severity
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.features import Scope
from attention_conformance.spec.problem import Array, Problem
from attention_conformance.tests.harness.judge.clause_tests import ClauseTest, Selection, clause_tests
from attention_conformance.tests.harness.judge.judge import FailureLimitError, Judge
from attention_conformance.tests.harness.judge.judging import status
from attention_conformance.tests.harness.judge.tiers import TIERS
from attention_conformance.tests.report.verdict import Status

LEAST = 0.01
"""A defect that changes every answer by less than this part of its norm changes none."""


def score(changes: Mapping[str, float | None]) -> str:
    """How many are killed of those that change an answer, and by name the others, with what they change."""
    left = {name: change for name, change in changes.items() if change is not None}
    alive = [name for name, change in left.items() if change > LEAST]
    below = [f"{name} ({change:.2%})" for name, change in left.items() if change <= LEAST]
    unchanged = f"; below {LEAST:.0%} of the norm: {', '.join(below)}" if below else ""
    killed, counted = len(changes) - len(left), len(changes) - len(below)
    return f"{killed} of {counted}" + "".join(f", {name} survives" for name in alive) + unchanged


def changes(defects: Sequence[Defect], dtype: str, processes: int) -> dict[str, float | None]:
    """For each defect whose implementation claims this dtype alone, None if it is killed, or what it changes."""
    names = names_alone(defects, dtype)
    with ProcessPoolExecutor(processes, initializer=compute_on_one_thread) as pool:
        return dict(zip(names, pool.map(change_if_alive, names, [dtype] * len(names)), strict=True))


def names_alone(defects: Sequence[Defect], dtype: str) -> list[str]:
    """Those that change values in a dtype: mistakes of cost change none, and those of precision may be none there."""
    harmless = (Severity.COST, Severity.PRECISION)
    return [d.id for d in defects if dtype in d.implementation.claims.dtypes and d.severity not in harmless]


def change_if_alive(name: str, dtype: str) -> float | None:
    """None if the quick tier kills it; else the largest known change of an answer, as a part of its norm."""
    defect = next(each for each in catalogue() if each.id == name)
    claims = replace(defect.implementation.claims, dtypes=(dtype,))
    alone = replace(defect.implementation, claims=claims)
    tests = {check.clause.id: check.test for check in Selection((alone,), dtypes=(dtype,)).plan()}
    if any(_judged(alone, test, dtype) is Status.FAIL for test in tests.values()):
        return None
    if (right := right_one(defect)) is None:
        return math.inf
    measured = Measured(alone, right)
    # Its own clauses have the inputs that show it, whether they are checked in this dtype or not.
    for test in {**tests, **{clause: clause_tests()[clause] for clause in defect.clauses}}.values():
        _judged(replace(alone, run=measured), test, dtype, failures=10**6)
    return measured.most


def _judged(alone: Implementation, test: ClauseTest, dtype: str, failures: int = 1) -> Status:
    judge = Judge(alone, dtype, tier=TIERS["quick"], failure_limit=failures, selected=(dtype,))
    with suppress(FailureLimitError):
        test(judge)
    return status(judge, None, dtype)[0]


def right_one(defect: Defect) -> Implementation | None:
    """What it would be without its mistake, where that is known: attention in steps, under no other convention."""
    claims = defect.implementation.claims
    if claims.scope is not Scope.OP or claims.conventions != Conventions():
        return None
    return replace(defect.implementation, run=torch_op(in_steps({}), extras=("weights", "log_sum_exp")))


@dataclass
class Measured:
    """The run of an implementation, with the largest difference from that of another one so far."""

    wrong: Implementation
    right: Implementation
    most: float = 0.0

    def __call__(self, problem: Problem, device: str) -> Result:
        result = self.wrong.run(problem.fresh(), device)
        self.most = max(self.most, *differences(result, self.right.run(problem.fresh(), device)))
        return result


def differences(one: Result, other: Result) -> Iterator[float]:
    """Of the output, what else both return, and all gradients together, each as a part of the norm of the second."""
    for name in ("output", "weights", "log_sum_exp"):
        if (got := getattr(one, name)) is not None and (right := getattr(other, name)) is not None:
            yield part_of_norm([(got, right)])
    yield part_of_norm([(got, other.gradients[name]) for name, got in one.gradients.items()])


def part_of_norm(pairs: Sequence[tuple[Array, Array]]) -> float:
    """How far the first of each pair are from the second; the same infinity or NaN in both is no difference."""
    wide = [(got.astype(np.float64), right.astype(np.float64)) for got, right in pairs]
    with np.errstate(invalid="ignore"):
        differ = sum(float(np.square(np.where(same(*pair), 0.0, pair[0] - pair[1])).sum()) for pair in wide)
    whole = sum(float(np.square(right[np.isfinite(right)]).sum()) for _, right in wide)
    if not differ:
        return 0.0
    return math.sqrt(differ / whole) if whole and math.isfinite(differ) else math.inf


def same(got: Array, right: Array) -> NDArray[np.bool_]:
    return np.asarray((got == right) | (np.isnan(got) & np.isnan(right)))
