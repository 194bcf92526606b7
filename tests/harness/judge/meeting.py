"""Meetings: the checks of cases in which uncommon things come together, and of the calls that go with them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import numpy as np

from attention_conformance.implementations.api.contract import Claims
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.reference.visibility import allowed_keys
from attention_conformance.spec.cases import Case, Layout, Pattern, Scores, Sizes
from attention_conformance.spec.conventions import Conventions
from attention_conformance.spec.covering import mended
from attention_conformance.spec.features import Feature
from attention_conformance.spec.meeting_levels import Call
from attention_conformance.spec.meetings import meetings
from attention_conformance.spec.problem import HALF, Problem, lay_out
from attention_conformance.tests.harness.judge.judge import Judge

LATER = 1000
"""Added to the seed of the call that comes first."""
MOST_JOINED = 530
"""In modules; wider ones take seconds."""
SEEDS, SEEDED = 12, 2000
"""So many seeds, so far apart, are tried for one that leaves each query a key."""
SHARE = 3
"""In dtypes other than the widest, one of so many is checked."""
MOST_SCORES, MOST_NUMBERS = 10_000, 20_000
"""Of a case in these dtypes: bounds of half types take long to work out, and chapter numerics has large ones."""


def claimed_meetings(judge: Judge) -> Iterator[tuple[Case, Call]]:
    """What is claimed, as near as the claims allow: all in the widest dtype, else a third of the small ones."""
    chosen = _meetings(judge.claims)
    if not chosen:
        list(judge.cases(Case()))  # states why none is supported
    own = judge.dtypes.index(judge.dtype)
    if own and len(chosen) > SHARE:
        chosen = tuple(each for each in chosen if _small(each[0].sizes))[own % SHARE :: SHARE]
    within = [each for each in chosen if judge.dtype not in HALF or _within_half(each[0])]
    fitted = ((each, call) for case, call in within for each in judge.cases(case))
    return ((each, call) for case, call in fitted for each in _leaving_keys(judge, case))


def _small(s: Sizes) -> bool:
    rows = s.num_heads * s.query_length + s.kv_heads * s.key_length
    scores, numbers = s.num_heads * s.query_length * s.key_length, rows * (s.d_k + s.d_v)
    return s.batch * scores <= MOST_SCORES and s.batch * numbers <= MOST_NUMBERS


def _leaving_keys(judge: Judge, case: Case) -> list[Case]:
    """The case, with a seed by which all masks leave each query a key, as two answers would be right otherwise."""
    surely = case.pattern is not Pattern.RULES and not case.extension.windowed
    if surely and mended(case, judge.conventions) == case:
        return [case]
    seeds = (replace(case, seed=case.seed + SEEDED * n) for n in range(SEEDS))
    return list(islice((each for each in seeds if _leaves_keys(judge.problem(each), judge.conventions)), 1))


def _leaves_keys(problem: Problem, conventions: Conventions) -> bool:
    """Whether each row sees a key, those behind the last query of a sample as well."""
    extras = {name: array for name, array in problem.extras.items() if name != "query_lens"}
    return bool(allowed_keys(problem.but(extras=extras), conventions).any(-1).all())


def _within_half(case: Case) -> bool:
    """Whether sums of its gradients stay within the range of half types."""
    # A product of bfloat16 with the factor 0 was seen to answer what was left in memory: chapter scores has it.
    far = case.scores is Scores.ONE_HOT or case.scale == 0.0
    return 1e-3 < case.value_scale < 1e3 and not far


def _joined(sizes: Sizes) -> int:
    """The width of all heads together, of which a module has matrices."""
    return sizes.num_heads * max(sizes.d_k, sizes.d_v)


@lru_cache(maxsize=8)
def _meetings(claims: Claims) -> tuple[tuple[Case, Call], ...]:
    """The same in all dtypes, and slow to choose."""

    def allowed(case: Case, call: Call) -> bool:
        differentiated = Feature.GRADIENTS in claims or not (call.needs or call.cotangent)
        of_mask = Feature.MASK_GRADIENT in claims or call.needs != "attn_mask"
        if not (differentiated and of_mask and (not call.apart or _takes_views(case, claims))):
            return False
        fitted = fit(case, claims)
        return isinstance(fitted, Case) and (fitted.module is None or _joined(fitted.sizes) <= MOST_JOINED)

    return tuple(meetings(allowed, claims.conventions))


def _takes_views(case: Case, claims: Claims) -> bool:
    viewed = fit(replace(case, layout=Layout.TRANSPOSED), claims)
    return isinstance(viewed, Case) and viewed.layout is not Layout.CONTIGUOUS


def assert_meeting(judge: Judge, case: Case, call: Call) -> None:
    """All that is claimed to be returned equals the reference, with the gradients of the call."""
    if call.again:
        judge.answer(case, _problem(judge, replace(case, seed=case.seed + LATER), call))
    if not (call.needs or call.cotangent or call.apart):
        # The next dtype has other cases: to solve them together for all would be in vain.
        replace(judge, dtypes_together=()).assert_conforms(case, *judge.parts(), context=str(call))
        return
    problem = _problem(judge, case, call)
    expected = judge.solve(problem).parts
    parts = judge.parts() if problem.cotangent is not None else ("output", *judge.returned)
    if (result := judge.answer(case, laid(problem, call), str(call), as_is=True)) is not None:
        judge.compare(case, result, expected, judge.expanded(parts, problem), str(call))


def laid(problem: Problem, call: Call) -> Problem:
    """A fresh copy, of which one input may lie apart."""
    fresh = problem.fresh()
    if call.apart not in fresh.arrays():
        return fresh
    return fresh.with_arrays({call.apart: lay_out(fresh.arrays()[call.apart], call.lies)})


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
