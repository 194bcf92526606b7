"""Candidate and baseline timed in rounds, so that a disturbance of the machine affects both.

Each round calls the candidate once and the baseline twice, in a random order. The ratio is the median of
the differences of logarithms within rounds. If the noise has the same distribution for all calls of a round, these
differences are symmetric around the true one: bursts that affect only some calls widen the interval and do not shift
it, as they would shift a ratio of means, or of two separate medians. The differences between the baseline's own two
times give the noise floor of the run.

A run continues until both intervals are narrow or the time is over. The stopping rule depends on their widths alone,
and not on their position: a run that stopped at the first significant difference would report one too often.
"""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import exp, expm1
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.tests.benchmarks.benchmark_run import Interval, Speed

Floats: TypeAlias = NDArray[np.float64]
Block: TypeAlias = Callable[[], float]
"""Times some calls in a row, each on new inputs, and returns the seconds of one call."""

OVERTIME, WIDER = 3.0, 2.0
"""On a busy machine the time may be exceeded by the first factor, until intervals are narrow within the second."""
LEAST = 6
"""Least number of rounds for an interval."""
RESAMPLES = 1000
LEVEL = 0.95
NEXT_LOOK = 1.3
"""The factor of the number of rounds between two looks at the widths, which cost time, too."""


@dataclass(frozen=True)
class Effort:
    """How long a pair is timed.

    Attributes:
        seconds: for all rounds together; see `OVERTIME`.
        fewest, most: rounds.
        width: half the width of a narrow interval, in logarithms. To detect a difference of 0.1 it has to be well
            below 0.05: the difference has to exceed its interval and the noise floor.
    """

    seconds: float = 3.0
    fewest: int = 12
    most: int = 600
    width: float = 0.02


@dataclass(frozen=True, eq=False)
class Times:
    """Seconds of blocks, by round: (rounds,) of the candidate, (rounds, 2) of the baseline."""

    candidate: Floats
    baseline: Floats

    def speed(self) -> Interval:
        """Baseline's time / candidate's: 2 is twice as fast."""
        pair = self._pair()
        return Interval(exp(pair.value), exp(pair.low), exp(pair.high))

    def noise(self) -> float:
        """The ratio, less 1, up to which the baseline's two times of a round differ in this run."""
        same = self._same()
        return expm1(max(abs(same.low), abs(same.high)))

    def narrow(self, width: float) -> bool:
        """True if both intervals are at most twice as wide as this, in logarithms."""
        return all(each.high - each.low <= 2.0 * width for each in (self._pair(), self._same()))

    def _pair(self) -> Interval:
        return median_interval(np.log(self.baseline) - np.log(self.candidate)[:, None])

    def _same(self) -> Interval:
        return median_interval(np.log(self.baseline[:, :1]) - np.log(self.baseline[:, 1:]))


@dataclass
class Clock:
    """Times pairs; its generator draws the order within rounds."""

    effort: Effort = Effort()
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def pair(self, candidate: Block, baseline: Block, same: Block) -> Times:
        """Rounds of candidate, baseline, and `same`: the baseline again, with tensors of its own."""
        blocks, rounds = (candidate, baseline, same), list[list[float]]()
        start, look = time.perf_counter(), self.effort.fewest
        with undisturbed():
            while len(rounds) < self.effort.most:
                took = time.perf_counter() - start
                if took >= OVERTIME * self.effort.seconds and len(rounds) >= LEAST:
                    break
                if len(rounds) >= look:
                    if _times(rounds).narrow(self.effort.width * (1.0 if took < self.effort.seconds else WIDER)):
                        break
                    look = int(NEXT_LOOK * len(rounds)) + 1
                rounds.append(self._round(blocks))
        return _times(rounds)

    def _round(self, blocks: Sequence[Block]) -> list[float]:
        took = [0.0] * len(blocks)
        for which in self.random.permutation(len(blocks)):
            took[which] = blocks[which]()
        return took


def _times(rounds: Sequence[Sequence[float]]) -> Times:
    seconds = np.array(rounds)
    return Times(seconds[:, 0], seconds[:, 1:])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without garbage collection, which would disturb one of the calls."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def median_interval(differences: Floats) -> Interval:
    """The median of (rounds, n) differences with its bootstrap interval over rounds."""
    random = np.random.default_rng(len(differences))
    drawn = random.integers(0, len(differences), (RESAMPLES, len(differences)))
    medians = np.median(differences[drawn].reshape(RESAMPLES, -1), axis=1)
    low, high = np.quantile(medians, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return Interval(float(np.median(differences)), float(low), float(high))


def verdict(speed: Interval, noise: float) -> Speed:
    """Faster or slower where the interval excludes 1 and the ratio lies beyond the noise floor; else no difference."""
    beyond = max(speed.value, 1.0 / speed.value) > 1.0 + noise
    if not beyond or speed.low <= 1.0 <= speed.high:
        return Speed.SAME
    return Speed.FASTER if speed.value > 1.0 else Speed.SLOWER
