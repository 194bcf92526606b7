"""Record: what a benchmark run knows, as values that survive JSON: measuring writes, the table and the page read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

SCHEMA = 1
"""Of the JSON below; a page refuses records of another."""


class Speed(StrEnum):
    """What can be said of an implementation's speed on a workload."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"
    """Inside the noise floor of the run, or the interval of the ratio contains 1."""
    BASELINE = "baseline"
    WRONG = "wrong"
    """An answer of a timed call is outside its rounding bound: there is no speed without correctness."""
    IMPOSSIBLE = "impossible"
    """Faster than the machine's own measured rates allow: the work was not done."""
    UNSUPPORTED = "unsupported"
    """It does not claim what the workload needs, or the machine has no room or device; `reason` says which."""
    ERROR = "error"


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Rates:
    """What the machine can do, measured in the same run.

    Attributes:
        matmul: multiply-adds count as two: floating-point operations per second, by dtype.
        bandwidth: bytes read and written by a large copy, or read by a large sum, per second.
        by_set: the same for working sets of so many bytes: those that fit into a cache move faster.
    """

    matmul: Mapping[str, float]
    bandwidth: float
    by_set: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """Where a run was made; runs of different machines are not compared without saying so."""

    device: str
    processor: str
    cores: int
    memory: int
    threads: int
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Measurement:
    """One implementation on one workload.

    Attributes:
        workload: as users name it: "gpt2-causal-1024".
        level: "op" or "module".
        passes: "forward" or "forward+backward".
        sizes: by the names of the shapes: B, H, Hk, Lq, Lk, d_k, d_v, and width at the module level.
        baseline: the implementation whose calls were interleaved with these.
        verdict: `reason` says why where it is none of speed.
        seconds: of each timed call (or of a block of `calls`, divided by their number).
        baseline_seconds: of the baseline's calls beside them.
        calls: how many calls a timed block has: more than one where one call is too short for the clock.
        speed: baseline's time / this one's: 2 is twice as fast; None without a verdict of speed.
        noise: the A/A half-width of the run for this workload: ratios within 1 +- noise are no difference.
        operations: floating-point operations that the equations need, a multiply-add as two.
        bytes: of inputs, parameters and results, each moved once.
        floor: the least seconds at the machine's rates: max(operations / rate, bytes / bandwidth).
        first_call: seconds of the very first call, compilation included.
        resident: bytes by which the process grew at its peak during one call, beyond its results; None: not measured.
        allocated: the same by torch's allocator, where the device has one.
        worst: the largest error of the timed calls' answers in units of the rounding bound; `checks` elements compared.
        checked: which parts of which answers that was, in words.
        adapter: whether the time contains the adapter's own cost, for want of a native call.
    """

    workload: str
    level: str
    passes: str
    dtype: str
    device: str
    implementation: str
    baseline: str
    sizes: Mapping[str, int]
    verdict: Speed
    reason: str = ""
    seconds: tuple[float, ...] = ()
    baseline_seconds: tuple[float, ...] = ()
    calls: int = 1
    speed: Interval | None = None
    noise: float | None = None
    operations: int = 0
    bytes: int = 0
    floor: float | None = None
    first_call: float | None = None
    resident: int | None = None
    allocated: int | None = None
    worst: float | None = None
    checks: int = 0
    checked: str = ""
    adapter: bool = False


@dataclass(frozen=True)
class Growth:
    """How time or memory of an implementation grows with the length: quantity ~ length ** exponent.

    Attributes:
        quantity: "time" or "memory".
        lengths: at which `values` (seconds or bytes) were measured.
        claimed: the exponent that the implementation claims at most; None without a claim.
        holds: whether the claim holds; None without one, or where the interval decides neither way.
    """

    implementation: str
    quantity: str
    passes: str
    dtype: str
    lengths: tuple[int, ...]
    values: tuple[float, ...]
    exponent: Interval
    claimed: float | None = None
    holds: bool | None = None


@dataclass(frozen=True)
class Finding:
    """What a run says of a clause of chapter speed that only measurements can answer.

    Attributes:
        where: the dtype, and the workload where it is about one.
        holds: None where the intervals decide neither way.
        said: the figures, in a sentence.
    """

    clause: str
    implementation: str
    where: str
    holds: bool | None
    context: str


@dataclass(frozen=True)
class Run:
    """A benchmark run.

    Attributes:
        findings: of the clauses of chapter speed that are measured, see `tests.benchmarks.asking`.
        imports: seconds to import what an implementation needs, in a process of its own, by implementation.
        complete: False until the closing record: an interrupted run cannot be taken for a whole one.
        absent: what was not run for want of something, and why: a device, for instance.
    """

    machine: Machine
    rates: Rates
    started: str
    measurements: tuple[Measurement, ...] = ()
    growths: tuple[Growth, ...] = ()
    imports: Mapping[str, float] = field(default_factory=dict)
    complete: bool = False
    schema: int = SCHEMA
    findings: tuple[Finding, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The run as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The run that `to_json` wrote.

        Raises:
            ValueError: it is none, or of another schema.
        """
        held = json.loads(text)
        if not isinstance(held, dict) or held.get("schema") != SCHEMA:
            raise ValueError(f"no benchmark run of schema {SCHEMA}")
        held["machine"] = Machine(**held["machine"])
        held["rates"] = Rates(**held["rates"])
        held["measurements"] = tuple(_measurement(each) for each in held["measurements"])
        held["growths"] = tuple(_growth(each) for each in held["growths"])
        held["findings"] = tuple(Finding(**each) for each in held.get("findings", ()))
        return cls(**held)


def _measurement(held: dict[str, Any]) -> Measurement:
    held["verdict"] = Speed(held["verdict"])
    held["speed"] = Interval(**held["speed"]) if held["speed"] else None
    return Measurement(**_tuples(Measurement, held))


def _growth(held: dict[str, Any]) -> Growth:
    held["exponent"] = Interval(**held["exponent"])
    return Growth(**_tuples(Growth, held))


def _tuples(kind: type, held: dict[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    if odd := sorted(held.keys() - names):
        raise ValueError(f"a {kind.__name__} has no {', '.join(odd)}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in held.items()}
