"""The clauses of chapter speed that are checked by measurements, each from the figures of a run."""

from collections.abc import Callable, Iterator, Mapping

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.builtin.catalogue import BUILTIN
from attention_conformance.implementations.builtin.compositions import COMPOSITIONS
from attention_conformance.tests.benchmarks.benchmark_run import (
    WITH_SPEED,
    ClauseResult,
    Growth,
    Interval,
    Measurement,
    Run,
)
from attention_conformance.tests.benchmarks.growth import growths, head_exponent, holds
from attention_conformance.tests.benchmarks.import_times import library
from attention_conformance.tests.benchmarks.workloads import FORWARD

PLAIN: Mapping[tuple[str, str], str] = {
    ("op", "torch"): "compose.eager",
    ("op", "numpy"): "compose.numpy",
    ("module", "torch"): "compose.module.eager",
}
"""The implementation of the three plain steps, by level and library."""


def time_growth(run: Run) -> Iterator[ClauseResult]:
    """speed.time-growth: the fitted power of time over length is no more than two."""
    for each in run.growths:
        if each.quantity == "time":
            context = f"time grows with the power {_text(each.exponent)} of the length, {each.passes}"
            yield ClauseResult("speed.time-growth", each.implementation, each.dtype, holds(each.exponent, 2.0), context)


def head_count(implementation: Implementation, dtype: str, device: str = "cpu") -> Iterator[ClauseResult]:
    """speed.head-count: time over the number of heads has no larger power than that of the three plain steps.

    It measures for a second or two; there is no result where one of the two does not support the calls.
    """
    plain = plain_steps(implementation)
    if plain is None:
        return
    own, of_plain = (head_exponent(each, dtype, device) for each in (implementation, plain))
    if not isinstance(own, Unsupported) and not isinstance(of_plain, Unsupported):
        yield compared_heads(implementation.name, plain.name, dtype, own, of_plain)


def growth_figures(
    implementation: Implementation, dtype: str, device: str
) -> tuple[str, tuple[Growth, ...], tuple[ClauseResult, ...]]:
    """The growths with the length, and the result of speed.head-count; or first why they cannot be measured."""
    grown = growths(implementation, FORWARD, dtype, device)
    if isinstance(grown, Unsupported):
        return grown.reason, (), ()
    return "", grown, tuple(head_count(implementation, dtype, device))


def compared_heads(name: str, plain: str, dtype: str, own: Interval, of_plain: Interval) -> ClauseResult:
    """The result from two powers: the largest allowed power is that of the plain steps, and at least 0."""
    context = f"time grows with the power {_text(own)} of the number of heads, that of {plain} with {_text(of_plain)}"
    results = {holds(own, max(0.0, end)) for end in (of_plain.low, of_plain.high)}
    return ClauseResult("speed.head-count", name, dtype, results.pop() if len(results) == 1 else None, context)


def baseline(run: Run, libraries: Mapping[str, str]) -> Iterator[ClauseResult]:
    """speed.baseline: no workload takes longer than by the three plain steps, where the run has timed these too.

    Both were compared with the same baseline, so the ratio of their speeds is the ratio of their ratios to it. The
    libraries are "torch" or "numpy", by implementation; see `import_times.library`.
    """
    for each in run.measurements:
        name = PLAIN.get((each.level, libraries.get(each.implementation, "torch")))
        plain = next((m for m in run.measurements if m.implementation == name and m.setting == each.setting), None)
        if plain is None or plain is each or not {each.verdict, plain.verdict} <= {*WITH_SPEED}:
            continue
        ratio = divided(_speed(each), _speed(plain))
        noise = max(each.noise or 0.0, plain.noise or 0.0)
        holds_here = True if ratio.low >= 1.0 - noise else None if ratio.high >= 1.0 - noise else False
        context = f"{_text(ratio)} times as fast as {name}, {each.passes}"
        yield ClauseResult("speed.baseline", each.implementation, f"{each.workload} {each.dtype}", holds_here, context)


def plain_steps(implementation: Implementation) -> Implementation | None:
    """The three plain steps at its level, in its library."""
    name = PLAIN.get((str(implementation.claims.scope), library(implementation)))
    return next((each for each in (*BUILTIN, *COMPOSITIONS) if each.name == name), None)


CHECKS: Mapping[str, Callable[..., Iterator[ClauseResult]]] = {
    "speed.time-growth": time_growth,
    "speed.head-count": head_count,
    "speed.baseline": baseline,
}
"""The function that checks a clause, by clause id."""


def clause_results(run: Run, libraries: Mapping[str, str]) -> tuple[ClauseResult, ...]:
    """The results that follow from the figures of a run; `head_count` measures more. `libraries`: see `baseline`."""
    return (*time_growth(run), *baseline(run, libraries))


def _speed(each: Measurement) -> Interval:
    return each.speed or Interval(1.0, 1.0, 1.0)


def divided(one: Interval, other: Interval) -> Interval:
    """The ratio of two numbers with independent errors: as wide as both intervals allow."""
    return Interval(one.value / other.value, one.low / other.high, one.high / other.low)


def _text(interval: Interval) -> str:
    return f"{interval.value:.2f} ({interval.low:.2f} to {interval.high:.2f})"
