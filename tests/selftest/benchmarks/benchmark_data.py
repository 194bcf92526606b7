"""Invented benchmark runs with every verdict, for the tests of table and page; no figure here was measured."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from attention_conformance.tests.benchmarks.benchmark_run import (
    ClauseResult,
    Growth,
    Interval,
    Machine,
    Measurement,
    Rates,
    Run,
    Speed,
)

MARKUP = '<script>alert(1)</script><img src=x onerror="alert(2)">'
LONG = "a_package_with_a_long_name.attention.variants:MultiHeadSlidingWindowAttentionWithSinks"
BASELINE = "torch.sdpa.math"
RATES = Rates({"float32": 1.2e11, "bfloat16": 2.1e12}, 1.8e10, {"65536": 1.5e11, "1073741824": 1.8e10})
MACHINE = Machine("cpu", "Invented Processor 9000 with 2 cores @ 2.70 GHz", 2, 8_000_000_000, 2, {"torch": "2.13.0"})
WORKLOADS = {
    "vit-b16": (1, 12, 197, 197, 64),
    "gpt2-causal-1024": (1, 12, 1024, 1024, 64),
    "decode-16384": (1, 32, 1, 16384, 128),
    "long-8192": (1, 4, 8192, 8192, 64),
}
LENGTHS = (256, 512, 1024, 2048, 4096)


@dataclass(frozen=True)
class Invented:
    """An implementation: its speed relative to the baseline, how its time and memory grow, and its claim of memory."""

    name: str
    speed: float
    verdict: Speed
    reason: str = ""
    growth: tuple[float, float] = (2.0, 2.0)
    claimed: float | None = None


IMPLEMENTATIONS = (
    Invented(BASELINE, 1.0, Speed.BASELINE),
    Invented("torch.sdpa.flash", 2.6, Speed.FASTER, growth=(1.95, 1.0), claimed=1.1),
    Invented("inhouse.fused", 1.004, Speed.SAME),
    Invented("inhouse.tiled", 0.62, Speed.SLOWER, growth=(2.02, 1.04), claimed=1.1),
    Invented("numpy.attention", 0.043, Speed.SLOWER, growth=(2.1, 1.97)),
    Invented(f"candidate.py:{MARKUP}", 1.31, Speed.FASTER, claimed=1.1),
    Invented(LONG, 0.9, Speed.SLOWER),
    Invented("wrong.py:fast", 9.0, Speed.WRONG, f"output of {MARKUP} head 2 query 0 is 31.4 x its rounding bound"),
    Invented("lazy.py:attention", 800.0, Speed.IMPOSSIBLE, "12 x faster than the machine's own matrix products"),
    Invented("flex", 1.0, Speed.UNSUPPORTED, "does not claim bfloat16 on cpu"),
    Invented("breaks.py:attention", 1.0, Speed.ERROR, "RuntimeError: out of memory\nwhile allocating 2 GB"),
)

CLAUSE_RESULTS = (
    ClauseResult("speed.time-growth", "torch.sdpa.flash", "float32", True, "time grows with the power 1.95"),
    ClauseResult("speed.time-growth", "numpy.attention", "float32", None, "time grows with the power 2.10"),
    ClauseResult("speed.first-call", f"candidate.py:{MARKUP}", "vit-b16, float32", False, f"{MARKUP} took 90 s"),
)


def invented(seed: int = 0, complete: bool = True) -> Run:
    """A run over several workloads, passes and dtypes."""
    draw = random.Random(seed)
    measurements = tuple(
        _measurement(draw, each, workload, passes, dtype)
        for workload in WORKLOADS
        for passes in ("forward", "forward+backward")
        for dtype in RATES.matmul
        for each in IMPLEMENTATIONS
    )
    imports, absent = {BASELINE: 1.9, IMPLEMENTATIONS[5].name: 0.4}, {"cuda": "no GPU: --device cuda"}
    run = Run(MACHINE, RATES, "2031-02-03T04:05:06Z", measurements, tuple(_growths(draw)), imports, complete)
    return replace(run, clause_results=CLAUSE_RESULTS, absent=absent)


def written(folder: Path, complete: bool = True) -> Path:
    """The file of such a run."""
    path = folder / "bench.json"
    path.write_text(invented(complete=complete).to_json())
    return path


def _measurement(draw: random.Random, each: Invented, workload: str, passes: str, dtype: str) -> Measurement:
    batch, heads, queries, keys, width = WORKLOADS[workload]
    backward = passes != "forward"
    operations = 4 * batch * heads * queries * keys * width * (3 if backward else 1)
    moved = 2 * batch * heads * (queries + keys) * width * (4 if dtype == "float32" else 2)
    floor = max(operations / RATES.matmul[dtype], moved / RATES.bandwidth)
    measurement = Measurement(
        workload=workload,
        level="module" if workload == "vit-b16" else "op",
        passes=passes,
        dtype=dtype,
        device="cpu",
        implementation=each.name,
        baseline=BASELINE,
        sizes={"B": batch, "H": heads, "Hk": heads, "Lq": queries, "Lk": keys, "d_k": width, "d_v": width},
        verdict=each.verdict,
        reason=each.reason,
        operations=operations,
        bytes=moved,
        floor=floor,
        adapter=each.name == "numpy.attention",
    )
    if each.verdict in (Speed.UNSUPPORTED, Speed.ERROR):
        return measurement
    return _timed(draw, measurement, 3.1 * floor, each.speed, keys)


def _timed(draw: random.Random, measurement: Measurement, base: float, speed: float, keys: int) -> Measurement:
    seconds = tuple(base / speed * draw.lognormvariate(0.0, 0.03) for _ in range(30))
    of_baseline = tuple(base * draw.lognormvariate(0.0, 0.03) for _ in range(30))
    ratio = median(of_baseline) / median(seconds)
    known = measurement.verdict not in (Speed.WRONG, Speed.IMPOSSIBLE)
    return replace(
        measurement,
        seconds=seconds,
        baseline_seconds=of_baseline,
        speed=Interval(ratio, ratio * 0.985, ratio * 1.016) if known else None,
        noise=draw.uniform(0.01, 0.03),
        first_call=seconds[0] * 20,
        resident=draw.randrange(1, 40) * 1024 * keys,
        worst=31.4 if measurement.verdict is Speed.WRONG else draw.uniform(0.02, 0.4),
        checks=10_000,
        checked="64 rows of 3 calls",
    )


def _growths(draw: random.Random) -> Iterator[Growth]:
    for each in IMPLEMENTATIONS[:6]:
        for dtype in RATES.matmul:
            for quantity, exponent, unit in zip(("time", "memory"), each.growth, (2e-10, 300.0), strict=True):
                values = tuple(unit / each.speed * n**exponent * draw.lognormvariate(0, 0.05) for n in LENGTHS)
                fitted = Interval(exponent, exponent - 0.04, exponent + 0.05)
                claimed = each.claimed if quantity == "memory" else None
                holds = None if claimed is None else exponent < claimed
                yield Growth(each.name, quantity, "forward", dtype, LENGTHS, values, fitted, claimed, holds)
