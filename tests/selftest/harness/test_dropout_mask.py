"""Statistics of dropout: exact false alarms and power for the share of kept weights, and detected repetitions."""

from math import lgamma, log

import numpy as np
import pytest

from attention_conformance.tests.harness.judge.dropout_mask import (
    CHANCE,
    Booleans,
    Floats,
    likely_share,
    relation,
    repetition,
)

WEIGHTS = 8192
SHAPE = (2, 4, 32, 32)


def _logs(keeping: float) -> Floats:
    """(n + 1,): the logarithm of the probability that k of the weights are kept."""
    alternatives = [lgamma(WEIGHTS + 1) - lgamma(k + 1) - lgamma(WEIGHTS - k + 1) for k in range(WEIGHTS + 1)]
    kept = np.arange(WEIGHTS + 1)
    return np.asarray(np.array(alternatives) + kept * log(keeping) + (WEIGHTS - kept) * log(1.0 - keeping))


def _accepted(keeping: float) -> Booleans:
    """(n + 1,): which counts of kept weights pass where they should be kept with this probability."""
    return np.array([likely_share(np.arange(WEIGHTS) < k, keeping) for k in range(WEIGHTS + 1)])


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_a_right_rate_is_seldom_accused_and_a_wrong_one_detected(rate: float) -> None:
    accepted = _accepted(1.0 - rate)
    assert 0.0 < np.exp(_logs(1.0 - rate)[~accepted]).sum() < CHANCE
    for wrong in (rate - 0.1, rate + 0.1):
        if 0.0 < wrong < 1.0:
            assert np.exp(_logs(1.0 - wrong)[accepted]).sum() < CHANCE
    for near in (rate - 0.01, rate + 0.01):
        assert np.exp(_logs(1.0 - near)[accepted]).sum() > 0.99


def _drawn(seed: int) -> Booleans:
    return np.random.default_rng(seed).random(SHAPE) < 0.5


def test_independent_choices_are_not_accused() -> None:
    for seed in range(50):
        assert repetition(_drawn(seed)) == 0
        assert relation(_drawn(seed), _drawn(seed + 1000)) is None


@pytest.mark.parametrize(
    ("axis", "distance"), [(0, 4 * 32 * 32), (1, 32 * 32), (2, 32), (3, 1)], ids=["sample", "head", "query", "key"]
)
def test_a_shared_choice_shows_at_its_distance(axis: int, distance: int) -> None:
    kept = np.broadcast_to(np.take(_drawn(0), [0], axis), SHAPE)
    assert repetition(kept) % distance == 0 < repetition(kept)


def test_one_pair_of_equal_heads_shows() -> None:
    kept = _drawn(1)
    kept[:, 3] = kept[:, 1]
    assert repetition(kept) == 2 * 32 * 32


def test_a_tile_of_queries_that_repeats_shows() -> None:
    kept = _drawn(2)
    kept[:, :, 16:] = kept[:, :, :16]
    assert repetition(kept) == 16 * 32


def test_the_same_numbers_some_places_on_are_related() -> None:
    stream = np.random.default_rng(3).random(2 * WEIGHTS) < 0.5
    first = stream[:WEIGHTS].reshape(SHAPE)
    for places in (0, 1, 1000, WEIGHTS // 2):
        later = stream[places : places + WEIGHTS].reshape(SHAPE)
        assert relation(first, later) == relation(later, first) == relation(first, ~later) == places
