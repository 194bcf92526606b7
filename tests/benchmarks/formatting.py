"""The figures of a measurement in table and page, as numbers and as text with units."""

import math
from collections.abc import Sequence
from statistics import median, quantiles

from attention_conformance.tests.benchmarks.benchmark_run import WITH_SPEED, Interval, Measurement
from attention_conformance.tests.report import wording

NOTHING = "-"


def counts(measurement: Measurement) -> bool:
    """True if the time is a speed: of right answers, possible, and measured at all."""
    return measurement.verdict in WITH_SPEED and bool(measurement.seconds)


def time_of(measurement: Measurement) -> float | None:
    """The median of the timed calls, in seconds."""
    return median(measurement.seconds) if measurement.seconds else None


def quartiles(seconds: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile of at least one value."""
    if len(seconds) < 2:
        return seconds[0], seconds[0]
    first, _, third = quantiles(seconds, n=4, method="inclusive")
    return first, third


def share_of_floor(measurement: Measurement) -> float | None:
    """The least time at the machine's rates / the median time: 1 is as fast as possible."""
    seconds = time_of(measurement)
    return measurement.floor / seconds if measurement.floor and seconds else None


def achieved(measurement: Measurement) -> float | None:
    """Floating-point operations per second that the equations need; None where either is unknown."""
    seconds = time_of(measurement)
    return measurement.operations / seconds if measurement.operations and seconds else None


def intensity(measurement: Measurement) -> float | None:
    """Operations per byte that has to be moved; None where either is unknown."""
    return measurement.operations / measurement.bytes if measurement.operations and measurement.bytes else None


def memory_of(measurement: Measurement) -> int | None:
    """Bytes at the peak of one call: the allocator's where the device has one, else the process's."""
    return measurement.resident if measurement.allocated is None else measurement.allocated


def digits(value: float) -> str:
    """Three significant digits, never in powers of ten; "1000" rather than "999.6"."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def scaled(value: float, units: Sequence[str], step: float = 1000.0) -> tuple[float, str]:
    """A divisor, and the largest unit not above the value; each unit is `step` times the one before."""
    power = math.floor(math.log(value, step) + 1e-12) if value > 0 and math.isfinite(value) else 0
    power = min(max(power, 0), len(units) - 1)
    return step**power, units[power]


def in_seconds(value: float | None) -> str:
    """A time: "12.3 ms"."""
    if value is None:
        return NOTHING
    divisor, unit = scaled(value * 1e9, ("ns", "µs", "ms", "s"))
    return f"{digits(value * 1e9 / divisor)} {unit}"


def with_quartiles(seconds: Sequence[float]) -> tuple[str, str]:
    """The median with its unit, and both quartiles in the same unit: ("12.3 ms", "12.1 .. 12.9")."""
    if not seconds:
        return NOTHING, ""
    divisor, _ = scaled(median(seconds) * 1e9, ("ns", "µs", "ms", "s"))
    return in_seconds(median(seconds)), " .. ".join(digits(each * 1e9 / divisor) for each in quartiles(seconds))


def in_bytes(value: float | None) -> str:
    """A size in powers of 1000, as rates are: "12.6 MB"."""
    if value is None:
        return NOTHING
    divisor, unit = scaled(value, ("B", "kB", "MB", "GB", "TB"))
    return f"{digits(value / divisor)} {unit}" if value >= 1000 else f"{value:.0f} B"


def in_rate(value: float, unit: str) -> str:
    """A number of units per second: "1.21 TFLOP/s"."""
    divisor, prefix = scaled(value, ("", "k", "M", "G", "T", "P"))
    return f"{digits(value / divisor)} {prefix}{unit}/s"


def in_percent(value: float | None) -> str:
    """A share: "62 %"; one decimal below ten."""
    if value is None:
        return NOTHING
    if 0.0 < value < 0.0005:
        return "<0.1%"
    return (f"{value:.0%}" if value >= 0.0995 else f"{value:.1%}").replace("%", " %")


def in_bounds(value: float | None) -> str:
    """An error in units of its bound, in two digits."""
    return wording.in_bounds(value) or NOTHING


def as_ratio(interval: Interval | None) -> str:
    """How many times as fast as the baseline: "1.41 [1.38, 1.44]", all three with as many decimals."""
    if interval is None:
        return NOTHING
    decimals = min(3, max(0, 2 - math.floor(math.log10(interval.value)))) if interval.value > 0 else 3
    return f"{interval.value:.{decimals}f} [{interval.low:.{decimals}f}, {interval.high:.{decimals}f}]"


def as_exponent(interval: Interval) -> str:
    """A fitted exponent: "1.98 [1.95, 2.02]"."""
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def visible(text: str) -> str:
    """The text in one line, with control characters escaped: names and reasons come from candidates."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))


def noises(measurements: Sequence[Measurement]) -> str:
    """The noise floor of these measurements: "1.2 %", or the range where it differs; "" where none is known."""
    known = sorted(each.noise for each in measurements if each.noise is not None)
    return " .. ".join(dict.fromkeys(in_percent(each) for each in (known[0], known[-1]))) if known else ""
