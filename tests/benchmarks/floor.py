"""The floor: how fast this machine multiplies and moves bytes, and so the least seconds of a call."""

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch

from attention_conformance.spec.problem import DTYPES
from attention_conformance.tests.benchmarks.benchmark_run import Machine, Rates
from attention_conformance.tests.benchmarks.required_work import Work

SIDES: Mapping[str, tuple[int, ...]] = {"cpu": (256, 512, 1024), "cuda": (1024, 2048, 4096, 8192)}
"""Sides of the square products: from those that fit into a cache to those that use every unit. The best one counts."""
SETS: Mapping[str, tuple[int, ...]] = {
    "cpu": tuple(2**power for power in (18, 20, 22, 24, 26, 28)),
    "cuda": tuple(2**power for power in (22, 24, 26, 28, 30)),
}
"""Bytes of the working sets: from those that stay in a cache to one that is larger than every cache."""
SHAPE_SECONDS = 0.05
"""Seconds for which the calls of one shape are repeated."""
PIECES = 3
"""Least number of products of half the digits that replace one product: high by high, and twice high by low."""


def rates(device: str, dtypes: Iterable[str] = tuple(DTYPES)) -> Rates:
    """The best rates of this moment, in three to five seconds, with the threads that torch has been given.

    Each is the best of several shapes and many repetitions, by all threads and by one: whatever disturbs a measurement
    makes it slower, so the best is nearest to the true rate. It may still be too low on a busy machine: see `fastest`
    and `faster_than_possible`.
    """
    measured = _measured(device, tuple(dtypes))
    if torch.get_num_threads() == 1 or device.startswith("cuda"):
        return measured
    with threads(1):
        return fastest(measured, _measured(device, tuple(dtypes)))


def limits(device: str, dtypes: Iterable[str] = tuple(DTYPES)) -> Rates:
    """Upper limits for any number of threads: the rates, and those of one thread times the number of threads.

    A single thread is measured well even on a busy machine, and it does not share a cache, a bus or a clock.
    """
    number = 1 if device.startswith("cuda") else torch.get_num_threads()
    with threads(1):
        one = _measured(device, tuple(dtypes))
    matmul, by_set = ({name: number * rate for name, rate in each.items()} for each in (one.matmul, one.by_set))
    return fastest(rates(device, dtypes), Rates(matmul, number * one.bandwidth, by_set))


def fastest(*measured: Rates) -> Rates:
    """The best of several measurements of one machine, before and after a run for instance."""

    def best(maps: Sequence[Mapping[str, float]]) -> dict[str, float]:
        names = dict.fromkeys(name for each in maps for name in each)
        return {name: max(each[name] for each in maps if name in each) for name in names}

    bandwidth = max(each.bandwidth for each in measured)
    return Rates(best([each.matmul for each in measured]), bandwidth, best([each.by_set for each in measured]))


def floor_seconds(work: Work, dtype: str, rates: Rates) -> float:
    """The least seconds for the work at the machine's rates: max(operations / rate, bytes / bandwidth).

    The rate is that of the dtype, or of a wider one if that is faster: numbers may be widened. The bandwidth is that
    of a working set no larger than the work's bytes: a small set stays in a cache, and moves faster.
    """
    wider = [rates.matmul[name] for name in _up_to(dtype) if name in rates.matmul]
    return max(work.operations / max(wider), work.bytes / bandwidth(work.bytes, rates))


def least_seconds(work: Work, dtype: str, rates: Rates) -> float:
    """The seconds below which no right answer can have been computed here: never more than `floor_seconds`.

    A wide product may consist of at least three narrow ones; with fewer the lost digits would show as an error. Where
    narrow products are twenty times as fast as wide ones, that is an honest optimisation.
    """
    narrower = [rate / PIECES for name, rate in rates.matmul.items() if name not in _up_to(dtype)]
    widest = max([rates.matmul[name] for name in _up_to(dtype) if name in rates.matmul] + narrower)
    return max(work.operations / widest, work.bytes / bandwidth(work.bytes, rates))


def faster_than_possible(
    seconds: Sequence[float], work: Work, dtype: str, known: Rates, limits: Callable[[], Rates]
) -> str:
    """The reason why the seconds of timed calls are impossible; empty if they are possible.

    The median is below `least_seconds` at the known rates, and also at the limits, which are measured only in that
    case: the machine may have been busy before.
    """
    took = median(seconds)
    if took >= least_seconds(work, dtype, known):
        return ""
    least = least_seconds(work, dtype, fastest(known, limits()))
    return f"took {took:.3g} s, but the machine needs at least {least:.3g} s for the work" if took < least else ""


def bandwidth(size: int, rates: Rates) -> float:
    """The largest possible rate in bytes per second for a working set of this size.

    A larger set is never faster than a smaller one, so the best of those at least as large counts too: it was
    disturbed less.
    """
    sizes = sorted(map(int, rates.by_set))
    smaller = [each for each in sizes if each <= size] or sizes[:1]
    return max([rates.by_set[str(each)] for each in sizes if each >= smaller[-1]], default=rates.bandwidth)


def machine(device: str) -> Machine:
    """The machine of this process, with the part of it that the process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processor = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    if device.startswith("cuda"):
        versions["cuda"] = torch.version.cuda or "unknown"
    return Machine(device, processor, cores, _memory(device), torch.get_num_threads(), versions)


def _measured(device: str, dtypes: Sequence[str]) -> Rates:
    kind = device.partition(":")[0]
    matmul = {dtype: max(_products(device, dtype, SIDES.get(kind, SIDES["cuda"]))) for dtype in dtypes}
    moved = {str(size): _moved(device, size) for size in SETS.get(kind, SETS["cuda"])}
    return Rates(matmul, [*moved.values()][-1], moved)


@contextmanager
def threads(number: int) -> Iterator[None]:
    """Torch computes with this number of threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _up_to(dtype: str) -> list[str]:
    """The dtype and all wider ones."""
    names = list(DTYPES)
    return names[: names.index(dtype) + 1]


def _products(device: str, dtype: str, sides: Sequence[int]) -> Iterable[float]:
    """Operations per second of square products, by torch and where it knows the dtype by NumPy."""
    for side in sides:
        first, second = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(2))
        into = torch.empty_like(first)
        yield 2 * side**3 / _best(partial(torch.mm, first, second, out=into), device)
        if device == "cpu" and dtype in ("float64", "float32"):
            arrays = (each.numpy() for each in (first, second, into))
            yield 2 * side**3 / _best(partial(np.matmul, *arrays), device)


def _moved(device: str, size: int) -> float:
    """Bytes per second of a copy that reads and writes half of them each, or of a sum that reads them all."""
    held = torch.ones(size // 4, device=device)
    half, other = held.chunk(2)
    return size / min(_best(lambda: other.copy_(half), device), _best(held.sum, device))


def _best(call: Callable[[], object], device: str) -> float:
    """The least seconds of a call within `SHAPE_SECONDS`; of two calls at least, the first of which does not count."""
    seconds_of(call, device)
    end, least = time.perf_counter() + SHAPE_SECONDS, seconds_of(call, device)
    while time.perf_counter() < end:
        least = min(least, seconds_of(call, device))
    return least


def seconds_of(call: Callable[[], object], device: str, number: int = 1) -> float:
    """Seconds of one call: the mean over this number of calls."""
    start = time.perf_counter()
    for _ in range(number):
        call()
    finish(device)
    return (time.perf_counter() - start) / number


def finish(device: str) -> None:
    """Waits until the device has done all that it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def _processor() -> str:
    """Its name and the instructions that torch uses: one name stands for several."""
    name, cpuinfo = platform.processor() or platform.machine(), Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        name = lines[0] if lines else name
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


def _memory(device: str) -> int:
    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    known = hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else 0
