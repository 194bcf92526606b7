"""Asking: the clauses of chapter speed that only measurements can answer, each of a run's figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from attention_conformance.implementations.api.contract import Implementation, Unsupported
from attention_conformance.implementations.builtin import BUILTIN
from attention_conformance.implementations.builtin.compositions import COMPOSITIONS
from attention_conformance.tests.benchmarks.growth import head_exponent, holds
from attention_conformance.tests.benchmarks.record import Finding, Interval, Measurement, Run, Speed
from attention_conformance.tests.benchmarks.starting import library

PLAIN: Mapping[tuple[str, str], str] = {
    ("op", "torch"): "compose.eager",
    ("op", "numpy"): "compose.numpy",
    ("module", "torch"): "compose.module.eager",
}
"""The three plain steps, by level and library."""
WITH_SPEED = (Speed.FASTER, Speed.SLOWER, Speed.SAME, Speed.BASELINE)


def time_growth(run: Run) -> Iterator[Finding]:
    """speed.time-growth: the fitted power of time over length is no more than two."""
    for each in run.growths:
        if each.quantity == "time":
            context = f"time grows with the power {_told(each.exponent)} of the length, {each.passes}"
            yield Finding("speed.time-growth", each.implementation, each.dtype, holds(each.exponent, 2.0), context)


def head_count(implementation: Implementation, dtype: str, device: str = "cpu") -> Iterator[Finding]:
    """speed.head-count: time over the number of heads has no larger power than that of the three plain steps.

    It measures, in a second or two; nothing is found where one of the two cannot be asked.
    """
    plain = plain_steps(implementation)
    mine = head_exponent(implementation, dtype, device)
    theirs = mine if plain is None else head_exponent(plain, dtype, device)
    if plain is not None and not isinstance(mine, Unsupported) and not isinstance(theirs, Unsupported):
        yield compared_heads(implementation.name, plain.name, dtype, mine, theirs)


def compared_heads(name: str, plain: str, dtype: str, mine: Interval, theirs: Interval) -> Finding:
    """The finding from two powers: the allowed one is that of the plain steps, and at least 0."""
    context = f"time grows with the power {_told(mine)} of the number of heads, that of {plain} with {_told(theirs)}"
    answers = {holds(mine, max(0.0, end)) for end in (theirs.low, theirs.high)}
    return Finding("speed.head-count", name, dtype, answers.pop() if len(answers) == 1 else None, context)


def baseline(run: Run, libraries: Mapping[str, str]) -> Iterator[Finding]:
    """speed.baseline: no workload takes longer than by the three plain steps, where the run has timed these too.

    Both have been compared with the same baseline in the same rounds, and so their ratio is that of their ratios.

    Args:
        run: with measurements.
        libraries: "torch" or "numpy", by implementation; see `starting.library`.
    """
    for each in run.measurements:
        name = PLAIN.get((each.level, libraries.get(each.implementation, "torch")))
        plain = next((m for m in run.measurements if m.implementation == name and _beside(m, each)), None)
        if plain is None or plain is each or not {each.verdict, plain.verdict} <= {*WITH_SPEED}:
            continue
        ratio = _divided(_speed(each), _speed(plain))
        noise = max(each.noise or 0.0, plain.noise or 0.0)
        fine = True if ratio.low >= 1.0 - noise else None if ratio.high >= 1.0 - noise else False
        context = f"{_told(ratio)} times as fast as {name}, {each.passes}"
        yield Finding("speed.baseline", each.implementation, f"{each.workload} {each.dtype}", fine, context)


def plain_steps(implementation: Implementation) -> Implementation | None:
    """The three plain steps at its level, in its library."""
    name = PLAIN.get((str(implementation.claims.scope), library(implementation)))
    return next((each for each in (*BUILTIN, *COMPOSITIONS) if each.name == name), None)


ASKED: Mapping[str, Callable[..., Iterator[Finding]]] = {
    "speed.time-growth": time_growth,
    "speed.head-count": head_count,
    "speed.baseline": baseline,
}
"""Which function speaks for which clause."""


def findings(run: Run, implementations: Sequence[Implementation]) -> tuple[Finding, ...]:
    """All that the figures of a run say by themselves; those of `head_count` have to be measured."""
    libraries = {each.name: library(each) for each in implementations}
    return (*time_growth(run), *baseline(run, libraries))


def _beside(one: Measurement, other: Measurement) -> bool:
    """Whether both are about the same question, and were compared with the same baseline."""
    names = ("workload", "level", "passes", "dtype", "device", "baseline")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _speed(each: Measurement) -> Interval:
    return each.speed or Interval(1.0, 1.0, 1.0)


def _divided(one: Interval, other: Interval) -> Interval:
    """The ratio of two numbers whose errors may stand in either direction."""
    return Interval(one.value / other.value, one.low / other.high, one.high / other.low)


def _told(found: Interval) -> str:
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
