"""Fitted powers: too fast growth is detected under every claim, and right growth never is."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TypeAlias

import numpy as np
import pytest
import torch

from attention_conformance.implementations.adapters.torch_op import torch_op
from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.builtin.catalogue import BUILTIN
from attention_conformance.implementations.builtin.compositions import COMPOSITIONS
from attention_conformance.implementations.defects import catalogue
from attention_conformance.implementations.worker.memory import absent
from attention_conformance.spec.clauses import load
from attention_conformance.tests.benchmarks import floor, growth, speed_clauses
from attention_conformance.tests.benchmarks.benchmark_run import ClauseResult, Growth, Interval, Run, Speed
from attention_conformance.tests.benchmarks.growth import exponent, growths, holds, measured, of_heads, of_length
from attention_conformance.tests.selftest.benchmarks.benchmark_data import MACHINE, RATES, invented

watched = pytest.mark.skipif(bool(absent()), reason=absent() or "measured")
SIZES = (512, 1024, 2048, 4096, 8192)
NAMED = {each.name: each for each in (*BUILTIN, *COMPOSITIONS)}
FLASH, EAGER = NAMED["torch.sdpa.flash"], NAMED["compose.eager"]
(QUADRATIC,) = (each.implementation for each in catalogue() if each.id == "all-scores-at-once")


def noisy(power: float, seed: int, deviation: float = 0.05, constant: float = 0.0) -> list[tuple[float, ...]]:
    """Five samples at each size: a power and a constant, times a noise that only ever slows."""
    rng = np.random.default_rng(seed)
    return [tuple((constant + size**power) * np.exp(rng.exponential(deviation, 5))) for size in SIZES]


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0, 3.0])
def test_a_power_is_fitted(power: float) -> None:
    samples = [7.0 * size**power for size in SIZES]
    fitted = exponent(SIZES, [(each,) for each in samples])
    rounding = len(SIZES) * np.finfo(float).eps * np.log([*SIZES, *samples]).max() / np.log(SIZES).std()
    assert max(abs(each - power) for each in (fitted.value, fitted.low, fitted.high)) <= rounding


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
def test_the_interval_covers_the_power_of_noisy_samples(power: float) -> None:
    fitted = [exponent(SIZES, noisy(power, seed), seed) for seed in range(60)]
    assert sum(each.low <= power <= each.high for each in fitted) >= 50
    assert max(each.high - each.low for each in fitted) < 0.5


def test_the_interval_is_wide_if_the_quantity_is_no_power() -> None:
    bent = exponent(SIZES, [(1e6 + size**2.0,) for size in SIZES])
    assert bent.high - bent.low > 0.3
    assert bent.high < 2.3


@pytest.mark.parametrize(
    ("sizes", "samples"), [((1, 2), [(1.0,), (2.0,)]), ((1, 2, 2), [(1.0,)] * 3), ((1, 2, 3), [(1.0,), (0.0,), (1.0,)])]
)
def test_a_power_needs_three_positive_samples(sizes: Sequence[int], samples: Sequence[Sequence[float]]) -> None:
    with pytest.raises(ValueError, match="positive numbers at three sizes or more, not to"):
        exponent(sizes, samples)


@pytest.mark.parametrize("seed", range(20))
def test_a_claim_holds_at_its_power_and_not_one_above(seed: int) -> None:
    for claimed in (1.0, 2.0):
        assert holds(exponent(SIZES, noisy(claimed, seed), seed), claimed) is True
        assert holds(exponent(SIZES, noisy(claimed + 1, seed), seed), claimed) is False
        assert holds(exponent(SIZES, noisy(claimed, seed, constant=1e5), seed), claimed) is True


def test_a_wide_interval_decides_nothing() -> None:
    assert holds(Interval(1.4, 0.9, 1.9), 1.0) is None
    assert holds(exponent(SIZES, noisy(1.0, 3, deviation=3.0)), 1.0) is None


@pytest.fixture
def without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long calls take on a busy machine."""
    monkeypatch.setattr(growth, "LONGEST", float("inf"))


@watched
@pytest.mark.usefixtures("without_limit")
@pytest.mark.parametrize(
    ("implementation", "claimed", "outcome"), [(FLASH, 1.0, True), (EAGER, None, None), (QUADRATIC, 1.0, False)]
)
def test_linear_memory_differs_from_quadratic_memory(
    implementation: Implementation, claimed: float | None, outcome: bool | None
) -> None:
    grown = growths(implementation, "forward", "float32", lengths=(1024, 1280, 1536, 2048), rounds=0)
    assert not isinstance(grown, Unsupported)
    (memory,) = grown
    assert (memory.quantity, memory.claimed, memory.holds) == ("memory", claimed, outcome)
    assert (memory.exponent.low > 1.0 + growth.STEP) == (implementation is not FLASH)


def test_unsupported_growth_has_a_reason() -> None:
    narrow = replace(FLASH, claims=replace(FLASH.claims, dtypes=("float32",)))
    assert growths(narrow, "forward", "float64") == Unsupported("does not claim float64")
    assert growths(NAMED["inhouse.numpy"], "forward+backward", "float32") == Unsupported("does not claim gradients")


def test_sizes_end_where_a_call_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "LONGEST", 0.0)
    result = measured(FLASH, of_length, (8, 16, 32), "forward", "float32")
    assert result == Unsupported("a call at size 8 takes longer than 0 s")


def test_times_are_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "BLOCK", 0.0)
    called: list[int] = []

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        called.append(query.shape[-2])
        return query

    measured(replace(FLASH, run=torch_op(attend)), of_length, (8, 16, 32), "forward", "float32")
    rounds = [called[-3 * number : len(called) - 3 * number + 3] for number in range(1, growth.ROUNDS + 1)]
    assert all(sorted(each) == [8, 16, 32] for each in rounds)
    assert len({tuple(each) for each in rounds}) > 1


# Negative controls of the clauses on time, with a clock that the implementation moves: no load can disturb it.


Costing: TypeAlias = Callable[[Callable[[torch.Tensor], float]], Implementation]


@pytest.fixture
def costing(monkeypatch: pytest.MonkeyPatch) -> Costing:
    """Makes an implementation that takes so many seconds for a query, or up to a tenth more."""
    clock, noise = SimpleNamespace(now=0.0), np.random.default_rng(0)
    for module in (growth, floor):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def implementation(seconds: Callable[[torch.Tensor], float]) -> Implementation:
        def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            clock.now += seconds(query) * (1 + 0.1 * noise.random())
            return query

        return replace(FLASH, name="costly", run=torch_op(attend))

    return implementation


@pytest.mark.parametrize(("power", "outcome"), [(1, True), (2, True), (3, False)])
def test_time_that_grows_with_the_third_power_is_detected(costing: Costing, power: int, outcome: bool) -> None:
    costly = costing(lambda query: 1e-3 * (query.shape[-2] / 16) ** power)
    grown = growths(costly, "forward", "float32", lengths=(16, 24, 32, 48, 64))
    assert not isinstance(grown, Unsupported)
    (result,) = speed_clauses.time_growth(run_of(growths=grown))
    assert (result.clause, result.holds) == ("speed.time-growth", outcome)


def test_growth_of_memory_is_no_growth_of_time() -> None:
    grown = Growth("a", "memory", "forward", "float32", SIZES, (1.0,) * 5, Interval(1.97, 1.9, 2.1), 2.0, True)
    assert [*speed_clauses.time_growth(run_of(growths=(grown,)))] == []


@pytest.mark.parametrize(("power", "outcome"), [(0, True), (1, False)])
def test_work_repeated_for_each_head_is_detected(costing: Costing, power: int, outcome: bool) -> None:
    fitted = growth.head_exponent(costing(lambda query: 1e-3 * query.shape[1] ** power), "float32")
    assert not isinstance(fitted, Unsupported)
    assert speed_clauses.compared_heads("costly", "plain", "float32", fitted, Interval(0.1, 0.0, 0.2)).holds is outcome


def test_heads_that_cost_what_their_exponentials_cost_are_fine() -> None:
    compared = partial(speed_clauses.compared_heads, "a", "plain", "float32")
    assert compared(Interval(0.5, 0.4, 0.6), Interval(0.5, 0.4, 0.6)).holds is True
    assert compared(Interval(-0.3, -0.4, -0.2), Interval(-0.9, -1.0, -0.8)).holds is True
    assert compared(Interval(1.0, 0.9, 1.1), Interval(0.5, 0.2, 0.8)).holds is None
    assert compared(Interval(2.0, 1.9, 2.1), Interval(0.5, 0.4, 0.6)).holds is False


def test_heads_are_compared_with_the_plain_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "HEADS", (2, 4, 8))
    monkeypatch.setattr(growth, "LONGEST", float("inf"))
    (result,) = speed_clauses.head_count(FLASH, "float32")
    assert "that of compose.eager with" in result.context
    assert [*speed_clauses.head_count(replace(FLASH, claims=replace(FLASH.claims, dtypes=())), "float32")] == []


def test_a_width_is_shared_by_the_heads() -> None:
    assert {each.sizes.num_heads * each.sizes.d_k for each in map(of_heads, growth.HEADS)} == {growth.WIDTH}


def test_the_plain_steps_are_those_of_the_library_and_level() -> None:
    names = {"torch.sdpa": "compose.eager", "inhouse.numpy": "compose.numpy", "torch.mha": "compose.module.eager"}
    for name, plain in names.items():
        steps = speed_clauses.plain_steps(NAMED[name])
        assert steps is not None
        assert steps.name == plain


@pytest.mark.parametrize(
    ("speed", "outcome"),
    [(Interval(1.2, 1.1, 1.3), True), (Interval(1.0, 0.97, 1.02), None), (Interval(0.5, 0.45, 0.55), False)],
)
def test_slower_than_the_plain_steps_is_detected(speed: Interval, outcome: bool | None) -> None:
    (result,) = results_for(speed)
    assert result.holds is outcome
    assert "times as fast as compose.eager" in result.context


def test_wrong_answers_give_no_clause_results() -> None:
    assert results_for(Interval(0.5, 0.4, 0.6), Speed.WRONG) == []


def results_for(speed: Interval, verdict: Speed = Speed.SAME) -> list[ClauseResult]:
    some = next(each for each in invented(seed=1).measurements if each.level == "op" and each.speed is not None)
    equal = Interval(1.0, 1.0, 1.0)
    plain = replace(some, implementation="compose.eager", verdict=Speed.SLOWER, speed=equal, noise=0.02)
    other = replace(plain, implementation="another", verdict=verdict, speed=speed)
    return [*speed_clauses.baseline(run_of(measurements=(plain, other)), {"another": "torch"})]


def run_of(**changes: object) -> Run:
    return replace(Run(MACHINE, RATES, "now"), **changes)  # type: ignore[arg-type]  # the names of its fields


def test_every_measured_clause_is_checked_and_no_other() -> None:
    assert set(speed_clauses.CHECKS) == {clause.id for clause in load().values() if clause.measured}


def test_clause_results_survive_json() -> None:
    run = run_of(clause_results=(ClauseResult("speed.baseline", "a", "b", None, "c"),))
    assert Run.from_json(run.to_json()) == run
