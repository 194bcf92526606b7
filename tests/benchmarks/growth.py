"""How time and memory grow with a size, as a fitted power with an interval."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from attention_conformance.implementations.adapters.native import native
from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.implementations.worker.memory import peak
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.tests.benchmarks.benchmark_run import Growth, Interval
from attention_conformance.tests.benchmarks.floor import seconds_of
from attention_conformance.tests.benchmarks.workloads import FORWARD

Floats: TypeAlias = NDArray[np.float64]

LENGTHS = (1024, 1536, 2048, 3072, 4096)
"""Lengths of the measurements: long enough for the largest power to dominate, and multiples of tiles."""
HEADS = (2, 4, 8, 16, 32)
"""Numbers of heads of the measurements."""
ROUNDS = 5
"""Timed calls of each size, in turn with those of the other sizes."""
BLOCK = 0.002
"""Seconds of a timed block at least: shorter calls are repeated."""
PAGE = 4096
"""Bytes: less cannot be observed, and counts as one page."""
LONGEST = 2.0
"""Seconds of a call above which no larger size is tried."""
REPLICATES = 2000
STEP = 0.5
"""Half the distance between two whole powers: a power between them counts as the nearer one."""
OP = Case().sized(batch=1, num_heads=2, d_k=64, d_v=64)
WIDTH = 512
"""Width of all heads together while their number grows."""


def of_length(length: int) -> Case:
    """Self-attention over this number of tokens."""
    return OP.sized(query_length=length, key_length=length)


def of_heads(heads: int) -> Case:
    """Self-attention with this number of heads of one width together."""
    width = WIDTH // heads
    return OP.sized(query_length=256, key_length=256, num_heads=heads, d_k=width, d_v=width)


@dataclass(frozen=True)
class Samples:
    """Seconds of each timed call, and bytes at the peak of one call, by size.

    The bytes include the results: without them pages and small objects could dominate the growth.
    """

    sizes: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    memory: tuple[int | None, ...]


def exponent(sizes: Sequence[int], samples: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """The power e in quantity ~ size ** e, by least squares on logarithms, with a 95 % bootstrap interval.

    The samples of each size are drawn anew and their median taken, and the residuals of the fit are drawn and added:
    the interval contains both noise and the distance of the quantity from a power.

    Raises:
        ValueError: fewer than three sizes, or a number that is not positive.
    """
    if len(set(sizes)) < 3 or any(each <= 0 for sample in samples for each in sample):
        listed = ", ".join(f"{list(sample)} at {size}" for size, sample in zip(sizes, samples, strict=True))
        raise ValueError(f"a power is fitted to positive numbers at three sizes or more, not to {listed}")
    rng = np.random.default_rng(seed)
    x = np.log(np.asarray(sizes, np.float64))
    y = np.log(np.asarray([median(sample) for sample in samples]))
    slope, residuals = _line(x, y)
    resampled = (rng.choice(np.asarray(sample, np.float64), (REPLICATES, len(sample))) for sample in samples)
    drawn = np.stack([np.median(each, -1) for each in resampled], -1)
    wider = residuals * (len(x) / (len(x) - 2)) ** 0.5
    slopes, _ = _line(x, np.log(drawn) + rng.choice(wider, drawn.shape))
    low, high = np.percentile(slopes, [2.5, 97.5])
    return Interval(float(slope), float(min(low, slope)), float(max(high, slope)))


def holds(exponent: Interval, claimed: float) -> bool | None:
    """True if a claim of at most this power holds; None if the interval allows both."""
    if exponent.high < claimed + STEP:
        return True
    return False if exponent.low > claimed + STEP else None


def growths(
    implementation: Implementation,
    passes: str,
    dtype: str,
    device: str = "cpu",
    lengths: Sequence[int] = LENGTHS,
    rounds: int = ROUNDS,
) -> tuple[Growth, ...] | Unsupported:
    """How time and memory grow with the length; memory is left out where it cannot be measured, time without rounds.

    Time is compared with equation 15.1, which grows with the square of the length; memory with the claim.
    """
    samples = measured(implementation, of_length, lengths, passes, dtype, device, rounds)
    if isinstance(samples, Unsupported):
        return samples
    sizes, linear = samples.sizes, 1.0 if Feature.LINEAR_MEMORY in implementation.claims else None

    def growth_of(quantity: str, values: Sequence[Sequence[float]], claimed: float | None) -> Growth:
        fitted, medians = exponent(sizes, values), tuple(map(median, values))
        outcome = None if claimed is None else holds(fitted, claimed)
        return Growth(implementation.name, quantity, passes, dtype, sizes, medians, fitted, claimed, outcome)

    results = [growth_of("time", samples.seconds, 2.0)] if rounds else []
    known = [max(PAGE, each) for each in samples.memory if each is not None]
    if len(known) == len(sizes):
        results.append(growth_of("memory", [(float(each),) for each in known], linear))
    return tuple(results)


def head_exponent(implementation: Implementation, dtype: str, device: str = "cpu") -> Interval | Unsupported:
    """The power with which time grows with the number of heads at a constant width of all together."""
    samples = measured(implementation, of_heads, HEADS, FORWARD, dtype, device)
    return samples if isinstance(samples, Unsupported) else exponent(samples.sizes, samples.seconds)


def measured(
    implementation: Implementation,
    case_of: Callable[[int], Case],
    sizes: Sequence[int],
    passes: str,
    dtype: str,
    device: str = "cpu",
    rounds: int = ROUNDS,
) -> Samples | Unsupported:
    """Time and memory of calls of several sizes; times in random order in turn, so that drift affects all sizes.

    Sizes are tried in their order until a call takes longer than `LONGEST`. At least three are needed.
    """
    calls: list[Callable[[], object]] = []
    memory: list[int | None] = []
    for size in sizes:
        ready = _ready(implementation, case_of(size), passes, dtype, device)
        if isinstance(ready, Unsupported):
            return ready
        if not calls:
            ready()
        start = time.perf_counter()
        memory.append(peak(ready, device).of_device)
        calls.append(ready)
        if time.perf_counter() - start > LONGEST:
            break
    if len(calls) < 3:
        return Unsupported(f"a call at size {sizes[len(calls) - 1]} takes longer than {LONGEST:g} s")
    return Samples(tuple(sizes[: len(calls)]), _in_turn(calls, device, rounds) if rounds else (), tuple(memory))


def _ready(
    implementation: Implementation, case: Case, passes: str, dtype: str, device: str
) -> Callable[[], object] | Unsupported:
    """The call of a case."""
    if dtype not in implementation.claims.dtypes:
        return Unsupported(f"does not claim {dtype}")
    if passes != FORWARD and Feature.GRADIENTS not in implementation.claims:
        return Unsupported(f"does not claim {Feature.GRADIENTS}")
    fitted = fit(case, implementation.claims)
    if isinstance(fitted, Unsupported):
        return fitted
    problem = build(fitted, dtype).fresh()
    problem = problem.forward_only() if passes == FORWARD else problem
    return native(implementation, problem, device).call


def _in_turn(calls: Sequence[Callable[[], object]], device: str, rounds: int) -> tuple[tuple[float, ...], ...]:
    order, draw = list(range(len(calls))), random.Random(0)
    numbers = [max(1, round(BLOCK / max(1e-9, seconds_of(call, device)))) for call in calls]
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        draw.shuffle(order)
        for each in order:
            seconds[each].append(seconds_of(calls[each], device, numbers[each]))
    return tuple(map(tuple, seconds))


def _line(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Slopes of least squares along the last axis of y, and the residuals."""
    centred, level = x - x.mean(), y.mean(-1, keepdims=True)
    slopes = ((y - level) * centred).sum(-1) / (centred**2).sum()
    return slopes, y - level - slopes[..., None] * centred
