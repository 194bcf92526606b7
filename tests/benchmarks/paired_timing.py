"""Pairing: candidate and baseline timed side by side, so that whatever disturbs the machine disturbs both.

Each round calls the candidate once and the baseline twice, in an order that is drawn anew. The ratio is the median of
the differences of logarithms within rounds. Whatever the noise is, if it is the same for all calls of a round, these
differences are symmetric around the true one: bursts that reach only some calls widen the interval and do not move it,
as they would a ratio of means, or of two separate medians. The differences between the baseline's own two times tell
what this run takes for different where nothing is: its noise floor.

A run goes on until both intervals are narrow or time is up. When it stops depends on their widths alone, and not on
where they lie: a run that stopped at the first significant difference would find one too often.
"""

from __future__ import annotations

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
Block: TypeAlias = Callable[[int], float]
"""Times some calls in a row, each on inputs that it has never seen, and gives their seconds; told the round."""

OVERTIME, BEARABLE = 3.0, 2.0
"""Where the machine is busy, time may be exceeded by the first factor, for intervals that are wider by the second."""
LEAST = 6
"""Rounds without which no interval is worth its name."""
RESAMPLES = 1000
LEVEL = 0.95
WIDE = 1.3
"""The next look at the widths comes after so many times the rounds of the last one: looking costs time, too."""


@dataclass(frozen=True)
class Effort:
    """How long a pair is timed.

    Attributes:
        seconds: for all rounds together; see `OVERTIME`.
        fewest, most: rounds.
        width: half the width of both intervals, in logarithms, that is narrow enough. To tell a tenth from nothing it
            has to be well below half a tenth: the difference has to leave its interval and the noise floor.
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
        return _exp(median_interval(np.log(self.baseline) - np.log(self.candidate)[:, None]))

    def noise(self) -> float:
        """The ratio, less 1, up to which the baseline's times differ from the baseline's times in this run."""
        found = median_interval(np.log(self.baseline[:, :1]) - np.log(self.baseline[:, 1:]))
        return expm1(max(abs(found.low), abs(found.high)))

    def narrow(self, width: float) -> bool:
        """Whether both intervals are no wider than twice this, in logarithms."""
        pair = median_interval(np.log(self.baseline) - np.log(self.candidate)[:, None])
        same = median_interval(np.log(self.baseline[:, :1]) - np.log(self.baseline[:, 1:]))
        return max(pair.high - pair.low, same.high - same.low) <= 2.0 * width


@dataclass
class Clock:
    """Times pairs; a seed of its own draws the order within rounds."""

    effort: Effort = Effort()
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def pair(self, candidate: Block, baseline: Block, same: Block) -> Times:
        """Rounds of candidate, baseline, and `same`: the baseline again, by tensors of its own."""
        blocks, rounds = (candidate, baseline, same), list[list[float]]()
        start, look = time.perf_counter(), self.effort.fewest
        with undisturbed():
            while len(rounds) < self.effort.most:
                took = time.perf_counter() - start
                if took >= OVERTIME * self.effort.seconds and len(rounds) >= LEAST:
                    break
                if len(rounds) >= look:
                    if _times(rounds).narrow(self._wanted(took)):
                        break
                    look = int(WIDE * len(rounds)) + 1
                rounds.append(self._round(blocks, len(rounds)))
        return _times(rounds)

    def _wanted(self, took: float) -> float:
        """How narrow is narrow enough after so many seconds."""
        return self.effort.width * (1.0 if took < self.effort.seconds else BEARABLE)

    def _round(self, blocks: Sequence[Block], number: int) -> list[float]:
        took = [0.0] * len(blocks)
        for which in self.random.permutation(len(blocks)):
            took[which] = blocks[which](number)
        return took


def _times(rounds: Sequence[Sequence[float]]) -> Times:
    held = np.array(rounds)
    return Times(held[:, 0], held[:, 1:])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Without the collection of poison, which would fall into whichever call comes next."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def median_interval(differences: Floats) -> Interval:
    """The median of (rounds, n) differences with its bootstrap interval, for which whole rounds are drawn."""
    random = np.random.default_rng(len(differences))
    drawn = random.integers(0, len(differences), (RESAMPLES, len(differences)))
    medians = np.median(differences[drawn].reshape(RESAMPLES, -1), axis=1)
    low, high = np.quantile(medians, [0.5 - LEVEL / 2, 0.5 + LEVEL / 2])
    return Interval(float(np.median(differences)), float(low), float(high))


def _exp(logarithms: Interval) -> Interval:
    return Interval(exp(logarithms.value), exp(logarithms.low), exp(logarithms.high))


def verdict(speed: Interval, noise: float) -> Speed:
    """Faster or slower where the interval excludes 1 and the ratio lies beyond the noise floor; else no difference."""
    beyond = max(speed.value, 1.0 / speed.value) > 1.0 + noise
    if not beyond or speed.low <= 1.0 <= speed.high:
        return Speed.SAME
    return Speed.FASTER if speed.value > 1.0 else Speed.SLOWER
