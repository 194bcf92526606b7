"""Growth: how time and memory grow with a size, as a fitted power with an interval."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from attention_conformance.implementations.adapters.native import native
from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.api.fitting import fit
from attention_conformance.spec.cases import Case
from attention_conformance.spec.features import Feature
from attention_conformance.spec.inputs import build
from attention_conformance.tests.benchmarks.benchmark_run import Growth, Interval
from attention_conformance.tests.benchmarks.memory import peak
from attention_conformance.tests.benchmarks.workloads import FORWARD

Floats: TypeAlias = NDArray[np.float64]

LENGTHS = (1024, 1536, 2048, 3072, 4096)
"""At which growth with the length is measured: long enough for what grows most to show, and for tiles to be whole."""
HEADS = (2, 4, 8, 16, 32)
"""At which growth with the number of heads is measured."""
ROUNDS = 5
"""Calls of each size that are timed, in turn with those of the other sizes."""
BLOCK = 0.002
"""Seconds that timed calls take together at least: shorter ones are made several times."""
PAGE = 4096
"""Bytes: less is not seen, and counts as so much."""
LONGEST = 2.0
"""Seconds of a call beyond which no larger size is tried."""
REPLICATES = 2000
STEP = 0.5
"""What tells a power from the next: half of one. Powers between whole ones belong to the nearer."""
OP = Case().sized(batch=1, num_heads=2, d_k=64, d_v=64)
WIDTH = 512
"""Of all heads together where their number grows."""


def of_length(length: int) -> Case:
    """Self-attention over so many tokens."""
    return OP.sized(query_length=length, key_length=length)


def of_heads(heads: int) -> Case:
    """Self-attention with so many heads, narrower the more there are."""
    width = WIDTH // heads
    return OP.sized(query_length=256, key_length=256, num_heads=heads, d_k=width, d_v=width)


@dataclass(frozen=True)
class Samples:
    """What was measured at each size: seconds of each timed call, and bytes at the peak of one, results included.

    Without these the rest may be so little that pages and small objects decide how it grows.
    """

    sizes: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    memory: tuple[int | None, ...]


def exponent(sizes: Sequence[int], samples: Sequence[Sequence[float]], seed: int = 0) -> Interval:
    """The power e in quantity ~ size ** e, by least squares on logarithms, with a 95 % bootstrap interval.

    The samples of each size are drawn anew and their median taken, and the residuals of the fit are drawn and added:
    the interval tells both of noise and of how far the quantity is from a power. It needs three sizes.

    Args:
        sizes: different ones.
        samples: for each size one or more positive numbers.
        seed: of the draws.

    Raises:
        ValueError: fewer than three sizes, or a number that is not positive.
    """
    if len(set(sizes)) < 3 or any(each <= 0 for found in samples for each in found):
        told = ", ".join(f"{list(found)} at {size}" for size, found in zip(sizes, samples, strict=True))
        raise ValueError(f"a power is fitted to positive numbers at three sizes or more, not to {told}")
    rng = np.random.default_rng(seed)
    x = np.log(np.asarray(sizes, np.float64))
    y = np.log(np.asarray([median(found) for found in samples]))
    slope, residuals = _line(x, y)
    drawn = np.stack([_medians(rng, np.asarray(found, np.float64)) for found in samples], -1)
    wider = residuals * (len(x) / (len(x) - 2)) ** 0.5
    slopes, _ = _line(x, np.log(drawn) + rng.choice(wider, drawn.shape))
    low, high = np.percentile(slopes, [2.5, 97.5])
    return Interval(float(slope), float(min(low, slope)), float(max(high, slope)))


def holds(found: Interval, claimed: float) -> bool | None:
    """Whether a claim of at most this power holds; None where the interval decides neither way."""
    if found.high < claimed + STEP:
        return True
    return False if found.low > claimed + STEP else None


def growths(
    implementation: Implementation,
    passes: str,
    dtype: str,
    device: str = "cpu",
    lengths: Sequence[int] = LENGTHS,
    rounds: int = ROUNDS,
) -> tuple[Growth, ...] | Unsupported:
    """How time and memory grow with the length; memory is left out where it cannot be measured, time without rounds.

    Time is held against equation 15.1, which grows with the square of the length; memory against what is claimed.
    """
    found = measured(implementation, of_length, lengths, passes, dtype, device, rounds)
    if isinstance(found, Unsupported):
        return found
    linear = 1.0 if Feature.LINEAR_MEMORY in implementation.claims else None
    made = partial(_growth, implementation.name, passes=passes, dtype=dtype, lengths=found.sizes)
    told = [made("time", samples=found.seconds, claimed=2.0)] if rounds else []
    known = [max(PAGE, each) for each in found.memory if each is not None]
    if len(known) == len(found.sizes):
        told.append(made("memory", samples=[(float(each),) for each in known], claimed=linear))
    return tuple(told)


def head_exponent(implementation: Implementation, dtype: str, device: str = "cpu") -> Interval | Unsupported:
    """The power with which time grows with the number of heads, while their width together stays."""
    found = measured(implementation, of_heads, HEADS, FORWARD, dtype, device)
    return found if isinstance(found, Unsupported) else exponent(found.sizes, found.seconds)


def measured(
    implementation: Implementation,
    case_of: Callable[[int], Case],
    sizes: Sequence[int],
    passes: str,
    dtype: str,
    device: str = "cpu",
    rounds: int = ROUNDS,
) -> Samples | Unsupported:
    """Time and memory of calls of several sizes, the times in turn and in random order, so that drift hits all alike.

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
    """The call for a case."""
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
    numbers = [max(1, round(BLOCK / max(1e-9, _seconds(call, 1, device)))) for call in calls]
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        draw.shuffle(order)
        for each in order:
            found[each].append(_seconds(calls[each], numbers[each], device))
    return tuple(map(tuple, found))


def _seconds(call: Callable[[], object], number: int, device: str) -> float:
    """Of one of so many calls."""
    start = time.perf_counter()
    for _ in range(number):
        call()
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / number


def _growth(
    name: str,
    quantity: str,
    *,
    passes: str,
    dtype: str,
    lengths: Sequence[int],
    samples: Sequence[Sequence[float]],
    claimed: float | None,
) -> Growth:
    found = exponent(lengths, samples)
    held = None if claimed is None else holds(found, claimed)
    values = tuple(median(each) for each in samples)
    return Growth(name, quantity, passes, dtype, tuple(lengths), values, found, claimed, held)


def _line(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Slopes of least squares along the last axis of y, and what is left."""
    centred, level = x - x.mean(), y.mean(-1, keepdims=True)
    slopes = ((y - level) * centred).sum(-1) / (centred**2).sum()
    return slopes, y - level - slopes[..., None] * centred


def _medians(rng: np.random.Generator, found: Floats) -> Floats:
    """(REPLICATES,) medians of samples that are drawn from the given ones."""
    return np.asarray(np.median(rng.choice(found, (REPLICATES, len(found))), -1))
