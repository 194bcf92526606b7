"""No clause runs a case that the claims exclude, whatever it makes of a case that they allow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeAlias

import numpy as np
import pytest

from attention_conformance.implementations.api.contract import Implementation, Result, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.builtin.catalogue import BUILTIN, NAMED
from attention_conformance.implementations.worker.memory import output_shape
from attention_conformance.reference.expected import Expected
from attention_conformance.spec.cases import Case, Layout, MaskKind, MaskShape
from attention_conformance.spec.clauses import load
from attention_conformance.spec.inputs import build
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.clause_tests import ClauseTest, claimed, clause_tests
from attention_conformance.tests.harness.judge.comparison import RETURNED_AS, part_of
from attention_conformance.tests.harness.judge.judge import Judge
from attention_conformance.tests.selftest.thorough import by_turns

Fit: TypeAlias = Callable[[Case], Case | Unsupported]

DTYPE = "float32"
FIRST = ("inhouse.fused.weights", "inhouse.tiled")
"""One module and one function with many features. Of the others, only clauses that these do not claim are run."""
REFUSALS = "errors."
"""These clauses run problems that every implementation has to refuse."""


def narrow(case: Case) -> Case | Unsupported:
    """Two samples, even lengths, contiguous arrays, and masks of one row of keys for each sample."""
    if case.layout is not Layout.CONTIGUOUS:
        return Unsupported("it takes contiguous arrays")
    queries, keys = (length + length % 2 for length in (case.sizes.query_length, case.sizes.key_length))
    sized = case if case.extension.chunks else case.sized(batch=2, query_length=queries, key_length=keys)
    return sized if case.mask is MaskKind.NONE else replace(sized, mask_shape=MaskShape.KEYS)


def single(case: Case) -> Case:
    """One sample, one query and one key."""
    return case if case.extension.chunks else case.sized(batch=1, query_length=1, key_length=1)


@dataclass
class Spy:
    """An implementation that answers zeros, and keeps what it was given that its claims exclude."""

    fit: Fit
    excluded: list[str] = field(default_factory=list)

    def run(self, problem: Problem, device: str) -> Result:
        arrays = {n: a for n, a in problem.arrays().items() if n in ("query", "key", "value", "attn_mask")}
        strided = [name for name, array in arrays.items() if not array.flags.c_contiguous]
        mask, sizes = problem.attn_mask, {"batch": problem.batch, "key_length": problem.key.shape[-2]}
        if self.fit is narrow and strided:
            self.excluded.append(f"{', '.join(strided)} not contiguous")
        if self.fit is narrow and mask is not None and mask.ndim == 4 and mask.shape[1:3] != (1, 1):
            self.excluded.append(f"a mask of shape {mask.shape}")
        case = Case().sized(query_length=problem.query.shape[-2], **sizes)
        if not problem.extension.chunks and self.fit(case) != case:
            self.excluded.append(f"sizes {case}")
        return zeros(problem)


def zeros(problem: Problem) -> Result:
    """An answer of the right form."""
    dtype, arrays, heads = problem.query.dtype, problem.arrays(), problem.num_heads
    queries, keys = problem.query.shape[-2], problem.key.shape[-2] + problem.extension.extra_keys
    return Result(
        np.zeros(output_shape(problem), dtype),
        weights=np.zeros((problem.batch, heads, queries, keys), dtype),
        averaged_weights=np.zeros((problem.batch, queries, keys), dtype),
        log_sum_exp=np.zeros((problem.batch, heads, queries), dtype),
        gradients={name: np.zeros_like(arrays[name]) for name in problem.needs},
    )


def zeros_expected(
    judge: Judge, case: Case, gradients: bool = False, also: tuple[str, ...] = ()
) -> Mapping[str, Expected]:
    """In the place of what the reference answers, which takes a third of the time and decides nothing here."""
    result = zeros(build(case, judge.dtype))
    parts = {"output": result.output} | {part: part_of(result, part) for part in RETURNED_AS}
    parts |= {f"gradients.{name}": array for name, array in result.gradients.items()}
    known = {name: np.zeros(part.shape) for name, part in parts.items() if part is not None}
    return {name: Expected(value, value + 1.0) for name, value in known.items()}


@cache
def clauses_of() -> dict[str, list[ClauseTest]]:
    """The clauses to run, by implementation: together they are all clauses."""
    assigned: dict[str, list[ClauseTest]] = {}
    left = {name for name, test in clause_tests().items() if DTYPE in test.dtypes}
    for each in sorted((*BUILTIN, *NAMED), key=lambda each: each.name not in FIRST):
        own = {name for name in clause_tests() if not claimed(load()[name], each.claims)}
        run = own if each.name in FIRST else own & left
        assigned[each.name] = [test for name, test in clause_tests().items() if name in run and DTYPE in test.dtypes]
        left -= own
    assert not left
    return {name: tests for name, tests in assigned.items() if tests}


def spied(implementation: Implementation, spy: Spy) -> Implementation:
    claims = implementation.claims

    def narrower(case: Case) -> Case | Unsupported:
        fitted = claims.fit(case)
        return fitted if isinstance(fitted, Unsupported) else spy.fit(fitted)

    return replace(
        implementation,
        claims=replace(claims, fit=narrower),
        run=spy.run,
        alternatives=dict.fromkeys(implementation.alternatives, spy.run),
        modes=dict.fromkeys(implementation.modes, spy.run),
    )


def observed_problem(plain: Callable[[Judge, Case], Problem], excluded: list[str], judge: Judge, case: Case) -> Problem:
    if fit(case, judge.claims) != case:
        excluded.append(str(case))
    return plain(judge, case)


@pytest.mark.parametrize("allowed", by_turns([narrow, single], 2))
@pytest.mark.parametrize("name", clauses_of())
def test_no_clause_runs_a_case_that_the_claims_exclude(
    name: str, allowed: Fit, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = Spy(allowed)
    candidate = spied(next(each for each in (*BUILTIN, *NAMED) if each.name == name), spy)
    spying = partial(observed_problem, Judge.problem, spy.excluded)
    monkeypatch.setattr(Judge, "problem", lambda judge, case: spying(judge, case))
    monkeypatch.setattr(Judge, "expected", zeros_expected)
    violations = {}
    for test in clauses_of()[name]:
        test(Judge(candidate, DTYPE))
        if spy.excluded and not test.clause.startswith(REFUSALS):
            violations[test.clause] = spy.excluded[0]
        spy.excluded.clear()
    assert not violations
