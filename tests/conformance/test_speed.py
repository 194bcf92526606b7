"""Chapter 15, speed: what a call needs of memory. Clauses on time are asked in tests/benchmarks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product

from attention_conformance.implementations.api.safe_call import CandidateError
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.benchmarks.memory import absent, left_behind, peak
from attention_conformance.tests.benchmarks.required_work import result_bytes
from attention_conformance.tests.harness.judge.clause_tests import clause
from attention_conformance.tests.harness.judge.judge import Judge

IN_ONE = ("float32",)
"""How memory grows is no matter of the dtype, and this one everybody has."""
TIMES = 4
"""So much longer is the long call."""
LENGTHS = (512, 1024)
"""Of short calls; the second is asked only where the first one says that memory is not linear."""
LIMIT = 0.5
"""Bytes for each pair of a query and a key: the smallest number takes one."""
GRANTED = 16
"""Bytes for each number of equation 15.2: two arrays of float64."""
STEP = 0.5
"""What tells a power from the next: half of one."""
CALLS = 4
"""Made one after the other to see what each leaves behind."""

PLAIN = Case(seed=301).sized(batch=1, num_heads=1, d_k=8, d_v=8)
LINEAR = (PLAIN, Case(PLAIN.sizes, seed=302, causal=True), Case(PLAIN.sizes, seed=303, causal=True).extended(left=300))
SMALL = Case(seed=304).sized(batch=2, num_heads=4, query_length=128, key_length=128, d_k=16, d_v=16)
FEW = Case(seed=305).sized(batch=32, num_heads=4, query_length=16, key_length=16, d_k=16, d_v=16)
NARROW = Case(seed=307).sized(batch=2, num_heads=2, query_length=256, key_length=256, d_k=16, d_v=16)
GROWN = (
    ("samples", SMALL, SMALL.sized(batch=16)),
    ("heads", FEW, FEW.sized(num_heads=32)),
    ("tokens", SMALL, SMALL.sized(query_length=512, key_length=512)),
    ("components", NARROW, NARROW.sized(d_k=64, d_v=64)),
)
KEPT = Case(seed=306).sized(batch=16, num_heads=2, query_length=128, key_length=128, d_k=32, d_v=32)


@clause("speed.linear-memory", dtypes=IN_ONE)
def test_linear_memory(judge: Judge) -> None:
    _assert_linear(judge, backward=False)


@clause("speed.linear-memory-gradients", dtypes=IN_ONE)
def test_linear_memory_gradients(judge: Judge) -> None:
    _assert_linear(judge, backward=True)


def _assert_linear(judge: Judge, backward: bool) -> None:
    for case in _asked(judge, LINEAR if judge.tier.examples else LINEAR[:2]):
        try:
            each = [_for_each_pair(judge, case, LENGTHS[0], backward)]
            if each[0] > LIMIT:
                each.append(_for_each_pair(judge, case, LENGTHS[1], backward))
        except CandidateError as error:
            judge.record_error(case, error)
            continue
        longest = TIMES * LENGTHS[-1]
        context = f"memory is not linear: {each[-1]:.3g} bytes for each pair of a query and a key"
        judge.assert_that(
            case, min(each) <= LIMIT, f"{context}, {each[-1] * longest**2 / 1e6:.3g} MB at {longest} tokens"
        )


def _for_each_pair(judge: Judge, case: Case, length: int, backward: bool) -> float:
    """Bytes for each pair by which a call needs more than so many times what a shorter one needs.

    What is constant in both is counted several times on one side and once on the other: in the candidate's favour.
    """
    _peak(judge, _long(case, length // 2), backward)
    short, long = (_peak(judge, _long(case, extent), backward) for extent in (length, TIMES * length))
    return (long - TIMES * short) / ((TIMES**2 - TIMES) * length**2)


def _long(case: Case, length: int) -> Case:
    return case.sized(query_length=length, key_length=length)


@clause("speed.memory-growth", dtypes=IN_ONE)
def test_memory_growth(judge: Judge) -> None:
    for causal, (what, *pair) in product((False, True), GROWN):
        cases = list(_asked(judge, [replace(case, causal=causal) for case in pair]))
        if len(cases) < 2:
            continue  # an implementation with one head has no more of them
        try:
            _peak(judge, cases[0])  # what only a first call needs
            before, after = (_peak(judge, case) for case in cases)
        except CandidateError as error:
            judge.record_error(cases[1], error)
            continue
        numbers = [_numbers(_problem(judge, case), case) for case in cases]
        ratio = numbers[1] / numbers[0]
        allowed = max(GRANTED * numbers[1], before * ratio ** (1 + STEP))
        grew = f"from {before / 1e6:.3g} to {after / 1e6:.3g} MB, {after / max(1, before):.3g} times"
        context = f"with more {what} memory grows {grew}, where equation 15.2 grows {ratio:.3g} times"
        judge.assert_that(cases[1], after <= allowed, context)


def _numbers(problem: Problem, case: Case) -> int:
    """Equation 15.2."""
    s = case.sizes
    pairs = s.query_length * s.key_length + (s.query_length + s.key_length) * (s.d_k + s.d_v)
    return s.batch * s.num_heads * pairs + sum(each.size for each in problem.parameters.values())


@clause("speed.memory-returned", dtypes=IN_ONE)
def test_memory_returned(judge: Judge) -> None:
    for case in _asked(judge, (KEPT,)):
        whole = judge.problem(case)
        for problem in [whole.forward_only(), *([whole] if Feature.GRADIENTS in judge.claims else [])]:
            limit = CALLS * result_bytes(problem) // 2
            try:
                left = judge.watch(problem, partial(left_behind, times=CALLS, suspicious=limit, device=judge.device))
            except CandidateError as error:
                judge.record_error(case, error)
                continue
            assert left is not None
            returned = f"their results, {2 * limit / 1e6:.3g} MB, have been let go"
            judge.assert_that(case, left <= limit, f"{CALLS} calls left {left / 1e6:.3g} MB behind after {returned}")


def _asked(judge: Judge, cases: Iterable[Case]) -> Iterable[Case]:
    """The cases as near as the claims allow; none where memory cannot be measured, which is noted."""
    missing = "" if judge.device.startswith("cuda") else absent()
    if missing:
        judge.unsupported.append(missing)
        return []
    return judge.cases(*cases)


def _problem(judge: Judge, case: Case) -> Problem:
    """The numbers of a causal case are those of the plain one: large ones are drawn and kept once."""
    return judge.problem(replace(case, causal=False)).but(causal=case.causal)


def _peak(judge: Judge, case: Case, backward: bool = False) -> int:
    problem = _problem(judge, case) if backward else _problem(judge, case).forward_only()
    found = judge.watch(problem, partial(peak, device=judge.device, results=result_bytes(problem))).of_device
    assert found is not None
    return found
