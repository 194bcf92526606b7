"""Paired timing: the statistics of times whose true ratio is known."""

from collections.abc import Callable
from contextlib import nullcontext
from math import log

import numpy as np
import pytest

from attention_conformance.tests.benchmarks import paired_timing
from attention_conformance.tests.benchmarks.benchmark_run import Interval, Speed
from attention_conformance.tests.benchmarks.paired_timing import Clock, Effort, Times, median_interval, verdict

RUNS = 50
Noise = Callable[[np.random.Generator], float]


@pytest.fixture(autouse=True)
def _without_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is timed here that a collection of garbage could disturb, and each takes longer than all that is."""
    monkeypatch.setattr(paired_timing, "undisturbed", nullcontext)


def quiet(random: np.random.Generator) -> float:
    """An idle machine: deviations of a few hundredths."""
    return float(np.exp(random.normal(0.0, 0.03)))


def bursts(random: np.random.Generator) -> float:
    """Three of ten calls take about twice as long or longer."""
    return quiet(random) * (1.0 + (random.random() < 0.3) * random.exponential(1.5))


def halved(random: np.random.Generator) -> float:
    """One of two calls shares its core with other processes."""
    return quiet(random) * (3.0 if random.random() < 0.5 else 1.0)


LONG = Effort(seconds=1e9, most=150)
NOISES = (quiet, bursts, halved)


def _times(noise: Noise, slower: float, seed: int, effort: Effort = LONG) -> Times:
    random = np.random.default_rng(seed)

    def block(factor: float) -> Callable[[], float]:
        return lambda: factor * noise(random)

    return Clock(effort, random).pair(block(1.0 + slower), block(1.0), block(1.0))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("slower", "expected", "share"), [(0.0, Speed.SAME, 0.95), (0.1, Speed.SLOWER, 0.9)])
def test_a_tenth_more_is_slower_and_the_same_is_not(noise: Noise, slower: float, expected: Speed, share: float) -> None:
    runs = (_times(noise, slower, seed) for seed in range(RUNS))
    verdicts = [verdict(times.speed(), times.noise()) for times in runs]
    assert verdicts.count(expected) >= share * RUNS


def test_the_interval_has_its_nominal_coverage() -> None:
    """The stopping rule depends on widths alone, so it does not change the level."""
    intervals = [_times(quiet, 0.25, seed).speed() for seed in range(RUNS)]
    assert sum(each.low <= 1 / 1.25 <= each.high for each in intervals) >= 0.9 * RUNS


def test_bursts_do_not_move_the_ratio() -> None:
    """The ratio of medians of the same times is wrong where half of the calls are disturbed."""
    runs = [_times(halved, 0.1, seed, Effort(seconds=1e9, fewest=150, most=150)) for seed in range(20)]
    paired = [abs(log(times.speed().value * 1.1)) for times in runs]
    apart = [abs(log(np.median(times.baseline) / np.median(times.candidate) * 1.1)) for times in runs]
    assert max(paired) < 0.1 < max(apart)


def test_a_run_ends_when_it_is_narrow_and_not_before_the_fewest_rounds() -> None:
    assert len(_times(lambda random: 1.0, 0.1, 0).candidate) == Effort().fewest
    assert len(_times(quiet, 0.1, 0).candidate) > Effort().fewest
    assert len(_times(halved, 0.1, 0, Effort(seconds=1e9, most=40)).candidate) == 40


def test_the_order_within_rounds_is_drawn() -> None:
    order: list[str] = []

    def block(name: str) -> Callable[[], float]:
        def called() -> float:
            order.append(name)
            return 1.0

        return called

    Clock(Effort(fewest=30, most=30)).pair(block("candidate"), block("baseline"), block("same"))
    rounds = [tuple(order[start : start + 3]) for start in range(0, len(order), 3)]
    assert {len(set(each)) for each in rounds} == {3}
    assert len(set(rounds)) == 6


def test_a_difference_has_to_exceed_both_its_interval_and_the_noise() -> None:
    assert verdict(Interval(0.9, 0.88, 0.92), 0.05) is Speed.SLOWER
    assert verdict(Interval(1.1, 1.08, 1.12), 0.05) is Speed.FASTER
    assert verdict(Interval(0.9, 0.88, 0.92), 0.15) is Speed.SAME
    assert verdict(Interval(0.9, 0.7, 1.01), 0.05) is Speed.SAME


def test_the_interval_is_that_of_the_median() -> None:
    interval = median_interval(np.random.default_rng(0).normal(0.5, 1.0, (400, 1)))
    assert interval.low < interval.value < interval.high
    # The standard error of the median of n normal numbers is 1.2533 / sqrt(n).
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * 1.2533 / 20, rel=0.3)
