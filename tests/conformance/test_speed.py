"""Chapter 15, speed: the memory of a call. Clauses on time are checked in tests/benchmarks."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.implementations.worker.memory import result_bytes
from attention_conformance.spec.cases import Case
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.harness.judge.clause_tests import clause, group
from attention_conformance.tests.harness.judge.judge import Judge

IN_ONE = ("float32",)
"""The growth of memory does not depend on the dtype, and every implementation has this one."""
TIMES = 4
"""The length of the long call / that of the short one."""
LENGTHS = (512, 1024)
"""Of short calls; the second is measured only if memory is not linear by the first."""
LIMIT = 0.5
"""Bytes for each pair of a query and a key: the smallest dtype has one."""
ALLOWED = 16
"""Bytes for each number of equation 15.2: two arrays of float64."""
STEP = 0.5
"""Half the distance between two powers."""
CALLS = 4
"""Number of calls after which the remaining memory is measured."""

PLAIN = Case(seed=301).sized(batch=1, num_heads=1, d_k=8, d_v=8)
LINEAR = (
    PLAIN,
    Case(PLAIN.sizes, seed=302, causal=True),
    Case(PLAIN.sizes, seed=303, causal=True).extended(window_left=300),
)
SMALL = Case(seed=304).sized(batch=2, num_heads=4, query_length=128, key_length=128, d_k=16, d_v=16)
FEW = Case(seed=305).sized(batch=32, num_heads=4, query_length=16, key_length=16, d_k=16, d_v=16)
NARROW = Case(seed=307).sized(batch=2, num_heads=2, query_length=256, key_length=256, d_k=16, d_v=16)
GROWN = (
    ("samples", SMALL, SMALL.sized(batch=16)),
    ("heads", FEW, FEW.sized(num_heads=32)),
    ("tokens", SMALL, SMALL.sized(query_length=512, key_length=512)),
    ("components", NARROW, NARROW.sized(d_k=64, d_v=64)),
)
RETURNED = Case(seed=306).sized(batch=16, num_heads=2, query_length=128, key_length=128, d_k=32, d_v=32)


def _assert_linear(judge: Judge, backward: bool) -> None:
    lengths = sorted({part for length in LENGTHS for part in (length // 2, length, TIMES * length)})
    for case in _measurable(judge, LINEAR if judge.tier.examples else LINEAR[:2]):
        if not all(judge.allows(_long(case, length)) for length in lengths):
            continue
        try:
            each = [_for_each_pair(judge, case, LENGTHS[0], backward)]
            if each[0] > LIMIT:
                each.append(_for_each_pair(judge, case, LENGTHS[1], backward))
        except CandidateError as error:
            judge.record_error(case, error)
            continue
        longest = TIMES * LENGTHS[-1]
        total = f"{each[-1] * longest**2 / 1e6:.3g} MB at {longest} tokens"
        message = f"memory is not linear: {each[-1]:.3g} bytes for each pair of a query and a key, {total}"
        judge.assert_that(case, min(each) <= LIMIT, message)


LINEAR_CLAUSES = group(_assert_linear, {"speed.linear-memory": False, "speed.linear-memory-gradients": True}, IN_ONE)


def _for_each_pair(judge: Judge, case: Case, length: int, backward: bool) -> float:
    """Bytes for each pair by which a long call needs more than `TIMES` the memory of a short one.

    Constant memory is subtracted `TIMES` times and added once: in favour of the candidate.
    """
    _peak(judge, _long(case, length // 2), backward)
    short, long = (_peak(judge, _long(case, extent), backward) for extent in (length, TIMES * length))
    return (long - TIMES * short) / ((TIMES**2 - TIMES) * length**2)


def _long(case: Case, length: int) -> Case:
    return case.sized(query_length=length, key_length=length)


@clause("speed.memory-growth", dtypes=IN_ONE)
def test_memory_growth(judge: Judge) -> None:
    for causal, (extent, *pair) in product((False, True), GROWN):
        cases = list(_measurable(judge, [replace(case, causal=causal) for case in pair]))
        if len(cases) < 2:
            judge.unsupported.append(f"its claims fix the number of {extent}")
            continue
        try:
            _peak(judge, cases[0])  # memory of a first call only
            before, after = (_peak(judge, case) for case in cases)
        except CandidateError as error:
            judge.record_error(cases[1], error)
            continue
        numbers = [_numbers(_problem(judge, case), case) for case in cases]
        ratio = numbers[1] / numbers[0]
        limit = max(ALLOWED * numbers[1], before * ratio ** (1 + STEP))
        grew = f"from {before / 1e6:.3g} to {after / 1e6:.3g} MB, {after / max(1, before):.3g} times"
        context = f"with more {extent} memory grows {grew}, where equation 15.2 grows {ratio:.3g} times"
        judge.assert_that(cases[1], after <= limit, context)


def _numbers(problem: Problem, case: Case) -> int:
    """Equation 15.2."""
    s = case.sizes
    pairs = s.query_length * s.key_length + (s.query_length + s.key_length) * (s.d_k + s.d_v)
    return s.batch * s.num_heads * pairs + sum(each.size for each in problem.parameters.values())


@clause("speed.memory-returned", dtypes=IN_ONE)
def test_memory_returned(judge: Judge) -> None:
    for case in _measurable(judge, (RETURNED,), "left_behind"):
        for problem in judge.problems(case):
            limit = CALLS * result_bytes(problem) // 2
            try:
                left = judge.observer.left_behind(problem, judge.device, CALLS, limit)
            except CandidateError as error:
                judge.record_error(case, error)
                continue
            assert left is not None
            results = f"their results, {2 * limit / 1e6:.3g} MB, were deleted"
            judge.assert_that(case, left <= limit, f"{CALLS} calls left {left / 1e6:.3g} MB behind after {results}")


def _measurable(judge: Judge, cases: Iterable[Case], request: str = "peak") -> Iterable[Case]:
    """The cases that the claims allow; none, with a note, where memory cannot be measured."""
    return judge.cases(*cases) if judge.observes(request) else []


def _problem(judge: Judge, case: Case) -> Problem:
    """A causal case has the inputs of the plain one, so that large inputs are drawn once."""
    return judge.problem(replace(case, causal=False)).but(causal=case.causal)


def _peak(judge: Judge, case: Case, backward: bool = False) -> int:
    problem = _problem(judge, case) if backward else _problem(judge, case).forward_only()
    growth = judge.observer.peak(problem, judge.device, result_bytes(problem))
    assert growth is not None
    return growth
