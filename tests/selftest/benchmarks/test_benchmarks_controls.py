"""Controls of the benchmarks: implementations that only seem fast, or are slow, have to be detected."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attention_conformance.implementations.adapters.native import native
from attention_conformance.implementations.adapters.numpy_op import numpy_op
from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Implementation, Result
from attention_conformance.spec.cases import Case, Sizes
from attention_conformance.spec.features import Feature, Scope
from attention_conformance.spec.problem import Problem
from attention_conformance.tests.benchmarks.benchmark_run import WITH_RATIO, Measurement, Rates, Speed
from attention_conformance.tests.benchmarks.contenders import contenders
from attention_conformance.tests.benchmarks.floor import threads
from attention_conformance.tests.benchmarks.measure import Conditions, measure
from attention_conformance.tests.benchmarks.paired_timing import Effort
from attention_conformance.tests.benchmarks.plan import KNOWN
from attention_conformance.tests.benchmarks.workloads import BOTH, FORWARD, REPRESENTATIVE, Timed, Workload, problem_for
from attention_conformance.tests.measurements.calibration import Longer
from attention_conformance.tests.selftest.thorough import by_turns, thorough

sdpa: Any = F.scaled_dot_product_attention
SDPA, MHA = KNOWN["torch.sdpa"], KNOWN["torch.mha"]
SMALL = Workload("small", Case(Sizes(2, 4, 64, 64, 16, 16), causal=True), "torch.sdpa")
FLOAT32 = Timed(SMALL, FORWARD, "float32")
(TINY_MODULE,) = (each for each in REPRESENTATIVE if each.name == "tiny.module.forward.float32")


def _measured(
    one: Implementation, timed: Timed = FLOAT32, baseline: Implementation = SDPA, rate: float = 1e18, **effort: Any
) -> Measurement:
    """On a machine with this rate of everything; on the default one nothing is impossible."""
    rates = Rates({"float32": rate, "bfloat16": rate}, rate, {"1": rate})
    conditions = Conditions("cpu", rates, replace(Effort(seconds=0.2), **effort), seed=1)
    return measure(timed, one, baseline, conditions)


def _with_run(right: Implementation, run: Any, name: str = "candidate") -> Implementation:
    claims = replace(right.claims, features=right.claims.features - {Feature.ALTERNATIVES})
    return replace(right, name=name, run=run, alternatives={}, claims=claims)


def _op(function: Callable[..., Any], name: str = "candidate") -> Implementation:
    return _with_run(SDPA, torch_op(function), name)


def _changed(change: Callable[[torch.Tensor, int], torch.Tensor]) -> Implementation:
    """SDPA with its answer changed; the change gets the number of the call, too."""
    calls = iter(range(10**9))
    return _op(lambda *inputs, **options: change(sdpa(*inputs, **options), next(calls)))


def test_a_right_implementation_is_timed_and_its_answers_are_checked() -> None:
    measurement = _measured(_op(sdpa))
    assert measurement.verdict in WITH_RATIO
    assert measurement.worst is not None
    assert measurement.worst <= 1.0
    assert measurement.checks > 0
    assert not measurement.adapter


@pytest.mark.parametrize("dtype", by_turns(["float32", "bfloat16"], 2))
@pytest.mark.parametrize("level", ["op", "module"])
def test_zeros_are_wrong_in_every_dtype_of_every_level(level: str, dtype: str) -> None:
    """Bounds are wide in half types; with these inputs they are narrow enough."""
    timed = next(t for t in REPRESENTATIVE if t.workload.level == level and t.workload.name.startswith("bert"))
    right = SDPA if level == "op" else MHA

    def zeros(problem: Problem, device: str) -> Result:
        result = right.run(problem, device)
        return replace(result, output=np.zeros_like(result.output))

    timed = timed._replace(passes=FORWARD, dtype=dtype)
    measurement = _measured(_with_run(right, zeros), timed, right, seconds=0.01, fewest=2)
    assert (measurement.verdict, measurement.speed) == (Speed.WRONG, None)
    assert "expected" in measurement.reason


@pytest.mark.parametrize("key", [lambda query: query.shape, lambda query: query.data_ptr()], ids=["shape", "address"])
def test_a_cached_answer_is_wrong(key: Callable[[torch.Tensor], object]) -> None:
    """The values of an input change, its shape and address do not."""
    cache: dict[object, torch.Tensor] = {}

    def cached(query: torch.Tensor, *rest: torch.Tensor, **options: Any) -> torch.Tensor:
        if key(query) not in cache:
            cache[key(query)] = sdpa(query, *rest, **options)
        return cache[key(query)].clone()

    assert _measured(_op(cached)).verdict is Speed.WRONG


@pytest.mark.parametrize(
    ("first", "change", "verdict"),
    [
        (20, lambda output: output * 1.01, Speed.WRONG),
        (12, lambda output: output / torch.zeros(3), Speed.ERROR),  # a shape that does not fit raises
    ],
)
def test_later_calls_are_checked_too(
    first: int, change: Callable[[torch.Tensor], torch.Tensor], verdict: Speed
) -> None:
    later = _changed(lambda output, call: output if call < first else change(output))
    assert _measured(later).verdict is verdict


def _with_slopes(change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The identity with its gradient changed."""

    class Changed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *slopes: torch.Tensor) -> torch.Tensor:
            return change(slopes[0])

    return Changed.apply


def test_right_gradients_are_not_wrong() -> None:
    assert _measured(_op(sdpa), Timed(SMALL, BOTH, "float32")).verdict is not Speed.WRONG


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("key", lambda slopes: slopes * 1.01),
        # In timed calls alone: their cotangents are dense, that of the untimed call is not.
        ("query", lambda slopes: slopes * (1.01 if slopes.count_nonzero() > slopes.numel() // 2 else 1.0)),
    ],
)
def test_wrong_gradients_are_wrong(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
        inputs = {"query": query, "key": key, "value": value}
        return sdpa(**inputs | {name: _with_slopes(change)(inputs[name])}, **options)

    measurement = _measured(_op(attention), Timed(SMALL, BOTH, "float32"))
    assert measurement.verdict is Speed.WRONG
    assert f"gradients.{name}" in measurement.reason


def test_wrong_gradients_of_a_module_are_wrong() -> None:
    timed = TINY_MODULE._replace(passes=BOTH)
    assert _measured(MHA, timed, MHA).verdict is Speed.BASELINE

    def stale(problem: Problem, device: str) -> Result:
        result = MHA.run(problem, device)
        return replace(result, gradients={**result.gradients, "w_k": result.gradients["w_k"] * 1.1})

    assert "gradients.w_k" in _measured(replace(MHA, name="stale", run=stale), timed, MHA).reason


def test_half_as_much_time_again_is_slower() -> None:
    longer = replace(_op(sdpa), run=Longer(SDPA.run, 0.5))
    assert _measured(longer, seconds=4.0, width=0.05).verdict is Speed.SLOWER


class Later(Result):
    """The result of a call that is made later."""

    def __init__(self, call: Callable[[], Result]) -> None:
        super().__init__(np.empty(0))
        object.__setattr__(self, "call", call)

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, "call")().output if name == "output" else super().__getattribute__(name)


def test_postponed_work_is_impossible() -> None:
    """The answers are right, but computed after the timed call."""
    lazy = replace(_op(sdpa), run=lambda problem, device: Later(lambda: SDPA.run(problem, device)))
    timed = Timed(replace(SMALL, case=Case(Sizes(2, 12, 256, 256, 64, 64))), FORWARD, "float32")
    measurement = _measured(lazy, timed, rate=1e9)
    assert measurement.verdict is Speed.IMPOSSIBLE, measurement.reason
    assert measurement.speed is None


@thorough
def test_a_slow_machine_at_the_start_makes_nothing_impossible() -> None:
    """Rates that were measured too low are measured again before anything is called impossible."""
    assert _measured(SDPA, rate=1e3).verdict is Speed.BASELINE


@pytest.mark.parametrize("error", [ZeroDivisionError("by zero"), SystemExit(0), pytest.skip.Exception("not today")])
def test_every_exception_of_a_candidate_is_an_error_with_its_name(error: BaseException) -> None:
    def attention(*inputs: torch.Tensor, **options: Any) -> Any:
        raise error

    measurement = _measured(_op(attention))
    assert measurement.verdict is Speed.ERROR
    assert measurement.reason.startswith("candidate raised")


def test_a_changed_number_of_threads_is_an_error() -> None:
    before = torch.get_num_threads()

    def attention(*inputs: torch.Tensor, **options: Any) -> Any:
        torch.set_num_threads(before + 1)
        return sdpa(*inputs, **options)

    measurement = _measured(_op(attention))
    assert measurement.verdict is Speed.ERROR
    assert "threads" in measurement.reason
    assert torch.get_num_threads() == before


def test_an_unclaimed_workload_is_unsupported_with_the_reason() -> None:
    claims = replace(SDPA.claims, features=SDPA.claims.features - {Feature.CAUSAL, Feature.ALTERNATIVES})
    measurement = _measured(replace(SDPA, name="limited", claims=claims, alternatives={}))
    assert (measurement.verdict, measurement.reason) == (Speed.UNSUPPORTED, "does not claim causal")
    assert not measurement.seconds
    assert "is a module" in _measured(MHA).reason


def test_a_wrong_baseline_gives_no_speed() -> None:
    wrong = _op(lambda *inputs, **options: sdpa(*inputs, **options) * 2, "wrong")
    measurement = _measured(_op(sdpa), baseline=wrong)
    assert measurement.verdict is Speed.ERROR
    assert "baseline wrong is wrong" in measurement.reason


def test_arrays_are_timed_as_arrays() -> None:
    scores = numpy_op(lambda q, k, v, **_: q @ k.swapaxes(-1, -2) @ v)
    assert _measured(replace(KNOWN["compose.numpy"], run=scores, name="scores")).verdict is Speed.WRONG
    assert _measured(KNOWN["compose.numpy"]).verdict in WITH_RATIO


def test_no_two_calls_of_a_run_have_the_same_inputs() -> None:
    inputs_of_calls: list[bytes] = []

    def attention(query: torch.Tensor, *rest: torch.Tensor, **options: Any) -> Any:
        inputs_of_calls.append(query.numpy().tobytes())
        return sdpa(query, *rest, **options)

    entrants = {"one": (_op(attention), SMALL.case), "other": (_op(attention), SMALL.case)}
    for contender in contenders(FLOAT32, "cpu", entrants).values():
        contender.widen(3)
        for _ in range(4):
            contender.block()
    assert len(inputs_of_calls) == 24
    assert len(set(inputs_of_calls)) == 24


def test_a_module_keeps_its_parameters_while_its_inputs_change() -> None:
    first, second = (problem_for(TINY_MODULE.workload, "float32", seed=seed) for seed in (0, 1))
    assert not np.array_equal(first.query, second.query)
    assert all(np.array_equal(first.parameters[name], second.parameters[name]) for name in first.parameters)
    assert native(MHA, first, "cpu").direct
    assert MHA.claims.scope is Scope.MODULE


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with threads(1):
        yield
