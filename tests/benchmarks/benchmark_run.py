"""A benchmark run as values that survive JSON: measuring writes them, the table and the page read them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

SCHEMA = 2
"""Version of the JSON below; a file of another version is refused."""
KEY = "attention"
"""The key of the run in a file of pytest-benchmark."""


class Speed(StrEnum):
    """The verdict on an implementation's speed on a workload."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "no difference"
    """Inside the noise floor of the run, or the interval of the ratio contains 1."""
    BASELINE = "baseline"
    WRONG = "wrong"
    """An answer of a timed call exceeds its rounding bound: a wrong answer has no speed."""
    IMPOSSIBLE = "impossible"
    """Faster than the machine's own measured rates allow: the work was not done."""
    UNSUPPORTED = "unsupported"
    """It does not claim a feature that the workload needs, or lacks memory or a device; `reason` states which."""
    ERROR = "error"


WITH_RATIO = (Speed.FASTER, Speed.SLOWER, Speed.SAME)
WITH_SPEED = (*WITH_RATIO, Speed.BASELINE)
"""Verdicts of a measurement whose time counts."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Rates:
    """The machine's own rates, measured in the same run.

    Attributes:
        matmul: floating-point operations per second of matrix products, a multiply-add as two, by dtype.
        bandwidth: bytes read and written by a large copy, or read by a large sum, per second.
        by_set: the same by size of the working set in bytes: a set that fits into a cache moves faster.
    """

    matmul: Mapping[str, float]
    bandwidth: float
    by_set: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Machine:
    """Where a run was made; runs of different machines are compared only on request."""

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
        workload: its name, such as "gpt2-causal-1024".
        level: "op" or "module".
        passes: "forward" or "forward+backward".
        sizes: by the names of the shapes: B, H, Hk, Lq, Lk, d_k, d_v, and width at the module level.
        baseline: the implementation whose calls were interleaved with the candidate's.
        verdict: where it is none of speed, `reason` explains it.
        seconds: of a call in each round (the mean over a block of `calls`).
        baseline_seconds: of the baseline's calls in the same rounds.
        calls: calls in a timed block: more than one where one call is too short for the clock.
        speed: the baseline's time / the candidate's: 2 is twice as fast; None without a verdict of speed.
        noise: the A/A half-width of the run for this workload: ratios within 1 +- noise are no difference.
        operations: floating-point operations that the equations need, a multiply-add as two.
        bytes: of inputs, parameters and results, each moved once.
        floor: the least seconds at the machine's rates: max(operations / rate, bytes / bandwidth).
        first_call: seconds of the very first call, compilation included.
        resident: bytes by which the process grew at its peak during one call, beyond its results; None: not measured.
        allocated: the same by torch's allocator, where the device has one.
        worst: the largest error of the timed calls' answers in units of the rounding bound.
        checks: number of compared elements.
        checked: which parts of which answers were compared, in words.
        adapter: True if the time contains the adapter's own cost, because there is no native call.
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

    @property
    def setting(self) -> tuple[str, ...]:
        """Everything but the implementation: measurements with the same setting can be compared."""
        return self.workload, self.level, self.passes, self.dtype, self.device, self.baseline


@dataclass(frozen=True)
class Growth:
    """How time or memory of an implementation grows with the length: quantity ~ length ** exponent.

    Attributes:
        quantity: "time" or "memory".
        lengths: at which `values` (seconds or bytes) were measured.
        claimed: the largest exponent that the implementation claims; None without a claim.
        holds: True if the claim holds; None without a claim, or where the interval allows both.
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
class ClauseResult:
    """The outcome of a clause of chapter speed that is checked by measurements.

    Attributes:
        where: the dtype, and the workload if the outcome concerns one.
        holds: True if the clause holds; None where the intervals allow both.
        context: the figures, in a sentence.
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
        clause_results: outcomes of the measured clauses of chapter speed, see `tests.benchmarks.speed_clauses`.
        imports: seconds to import the library of an implementation in a process of its own, by implementation.
        complete: False until the run is closed: an interrupted run cannot be taken for a whole one.
        absent: the reasons by name of what was not run, such as a missing device.
    """

    machine: Machine
    rates: Rates
    started: str
    measurements: tuple[Measurement, ...] = ()
    growths: tuple[Growth, ...] = ()
    imports: Mapping[str, float] = field(default_factory=dict)
    complete: bool = False
    schema: int = SCHEMA
    clause_results: tuple[ClauseResult, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The run as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The run that `to_json` wrote.

        Raises:
            ValueError: the text is no such run, or has another schema.
        """
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("schema") != SCHEMA:
            raise ValueError(f"no benchmark run of schema {SCHEMA}")
        try:
            return TypeAdapter(cls).validate_python(content)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{where}: {first['msg']}") from error


def run_of(path: Path) -> Run:
    """The run in a file that pytest-benchmark or `Run.to_json` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no run; the message names the file and the remedy.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        return Run.from_json(json.dumps(content[KEY]) if isinstance(content, dict) and KEY in content else text)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no benchmark run ({error}); give a file that `make bench` wrote") from error


def store(run: Run, path: Path) -> None:
    """Writes an unfinished run to the file that pytest-benchmark writes at the end."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps({KEY: json.loads(run.to_json()), "benchmarks": []}) + "\n", encoding="utf-8")
    unfinished.replace(path)
