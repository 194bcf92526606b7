"""Meetings: the checks of cases in which two uncommon things come together, and of the calls that go with them."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from attention_conformance.implementations.api.contract import Claims, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.reference.expected import solve
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.meetings import Call, meetings
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.judge import Judge

LATER = 1000
"""Added to the seed of the call that comes first."""
SHARE = 4
"""In dtypes other than the widest, one of so many is checked."""


def claimed_meetings(judge: Judge) -> list[tuple[Case, Call]]:
    """Those of what is claimed, each case as near as the claims allow it: all in the widest dtype, else a quarter."""
    chosen = _meetings(judge.claims)
    if not chosen:
        list(judge.cases(Case()))  # states why none is supported
    own = judge.dtypes.index(judge.dtype)
    if own and len(chosen) > SHARE:
        chosen = chosen[own % SHARE :: SHARE]
    return [(fitted, call) for case, call in chosen for fitted in judge.cases(case)]


@lru_cache(maxsize=8)
def _meetings(claims: Claims) -> tuple[tuple[Case, Call], ...]:
    """The same in all dtypes, and slow to choose."""
    return tuple(meetings(lambda case: not isinstance(fit(case, claims), Unsupported), claims.conventions))


def assert_meeting(judge: Judge, case: Case, call: Call) -> None:
    """All that is claimed to be returned equals the reference, with the gradients of the call."""
    if call.again:
        judge.answer(case, _problem(judge, replace(case, seed=case.seed + LATER), call))
    if not (call.needs or call.cotangent):
        judge.assert_conforms(case, *judge.parts(), context=str(call))
        return
    problem = _problem(judge, case, call)
    expected = solve(problem, judge.conventions, returned=judge.returned).parts
    parts = judge.parts() if problem.cotangent is not None else ("output", *judge.returned)
    if (result := judge.answer(case, problem, str(call))) is not None:
        judge.compare(case, result, expected, judge.expanded(parts, problem), str(call))


def _problem(judge: Judge, case: Case, call: Call) -> Problem:
    problem = judge.problem(case)
    if call.needs == "nothing" or Feature.GRADIENTS not in judge.claims or problem.cotangent is None:
        return problem.forward_only()
    if call.needs in problem.needs:
        problem = problem.but(needs=(call.needs,))
    cotangent = np.array(problem.cotangent)
    if call.cotangent == "ones":
        cotangent[...] = 1
    elif call.cotangent == "row":
        cotangent[..., :-1, :] = 0
    return problem.with_arrays({"cotangent": cotangent}) if call.cotangent else problem
