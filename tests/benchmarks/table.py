"""The terminal table of a run: one block for each workload, one line for each implementation."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from attention_conformance.tests.benchmarks import figures
from attention_conformance.tests.benchmarks.record import Finding, Growth, Measurement, Run

COLUMNS = ("time", "quartiles", "x baseline", "floor", "memory", "worst", "verdict")
WIDTHS = (8, 12, 20, 5, 7, 5, 13)
"""Of the columns after the name; two spaces lie between the name and the first, one between the others."""
LEFT = {"quartiles", "verdict"}
SPACES = 2 + 2 + len(WIDTHS) - 1
NARROWEST = 12
"""Of the column of names: with less room, and for a longer name, the name has a line of its own and is never cut."""
LEGEND = (
    "x baseline: 2 is twice as fast, with its 95 % interval; floor: the machine's least time / this one;"
    " memory: peak of one call; worst: largest error in units of its rounding bound; *: with the adapter's cost"
)


def lines(run: Run, width: int | None = None) -> Iterator[str]:
    """The lines of the table, readable without colour.

    Args:
        run: complete or not; one that is not says so first.
        width: of the terminal in columns, asked of it where None; less than 80 is not kept.
    """
    width = width or shutil.get_terminal_size((100, 24)).columns
    if not run.complete:
        yield "INCOMPLETE: this run was cut short, what follows is not all of it"
    yield from _head(run, width)
    for _, found in groupby(run.measurements, key=_block):
        yield ""
        yield from _workload(list(found), width)
    if run.growths:
        yield ""
        yield from _growths(run.growths, width)
    if run.findings:
        yield ""
        yield from _findings(run.findings, width)
    if run.measurements:
        yield ""
        yield from wrap(LEGEND, width)


def _head(run: Run, width: int) -> Iterator[str]:
    machine, rates = run.machine, run.rates
    threads = f"{machine.threads} thread{'s' * (machine.threads != 1)}"
    room = figures.in_bytes(machine.memory)
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    told = [f"{machine.device}: {machine.processor}, {machine.cores} cores, {room}; {threads}; {versions}"]
    products = ", ".join(f"{dtype} {figures.in_rate(rate, 'FLOP')}" for dtype, rate in rates.matmul.items())
    told.append(f"matrix products {products}; copies {figures.in_rate(rates.bandwidth, 'B')}")
    told.append(f"noise {figures.noises(run.measurements) or 'not measured'}; started {run.started}")
    told += [f"NOT RUN: {why}" for why in run.absent.values()]
    for each in told:
        yield from wrap(figures.visible(each), width, subsequent_indent="  ")


def _block(measurement: Measurement) -> tuple[str, ...]:
    which = (measurement.workload, measurement.level, measurement.passes, measurement.dtype, measurement.device)
    return (*which, measurement.baseline, str(measurement.sizes))


def _workload(found: Sequence[Measurement], width: int) -> Iterator[str]:
    first = found[0]
    sizes = " ".join(f"{name}={size}" for name, size in first.sizes.items())
    what = f"{first.workload}: {first.level}, {first.passes}, {first.dtype} on {first.device}; {sizes}"
    noise = figures.noises(found)
    yield from wrap(figures.visible(what), width, subsequent_indent="  ")
    yield from wrap(figures.visible(f"  baseline {first.baseline}{noise and f', noise {noise}'}"), width)
    names = _room(found, width - sum(WIDTHS) - SPACES)
    yield f"  {'':{names}}  {_cells(COLUMNS)}".rstrip()
    for each in found:
        yield from _line(each, names, width)


def _room(found: Sequence[Measurement], left: int) -> int:
    """The width of the names: of the longest that fits into what is left of the line."""
    fitting = [len(_name(each)) for each in found if len(_name(each)) <= left]
    return max([NARROWEST, *fitting]) if left >= NARROWEST else 0


def _name(measurement: Measurement) -> str:
    return figures.visible(measurement.implementation)


def _line(measurement: Measurement, names: int, width: int) -> Iterator[str]:
    name = _name(measurement)
    if len(name) > names:
        yield from wrap(name, width, initial_indent="  ", subsequent_indent="    ")
        name = ""
    lead = f"  {name:{names}}  "
    if figures.counts(measurement):
        yield f"{lead}{_cells(_told(measurement))}".rstrip()
        return
    why = f"{measurement.verdict}: {figures.visible(measurement.reason) or 'no reason is known'}"
    for number, line in enumerate(wrap(why, width - len(lead))):
        yield f"{' ' * len(lead) if number else lead}{line}"


def _told(measurement: Measurement) -> tuple[str, ...]:
    middle, around = figures.with_quartiles(measurement.seconds)
    ratio = figures.as_ratio(measurement.speed)
    share = figures.in_percent(figures.share_of_floor(measurement))
    worst = figures.in_bounds(measurement.worst)
    memory = figures.in_bytes(figures.memory_of(measurement))
    return middle + "*" * measurement.adapter, around, ratio, share, memory, worst, str(measurement.verdict)


def _cells(told: Sequence[str]) -> str:
    paired = zip(told, COLUMNS, WIDTHS, strict=True)
    return " ".join(f"{cell:{'<' if name in LEFT else '>'}{width}}" for cell, name, width in paired)


def _growths(found: Sequence[Growth], width: int) -> Iterator[str]:
    yield "growth with the length L, fitted"
    for each in found:
        over = f"L {each.lengths[0]} .. {each.lengths[-1]}" if each.lengths else "no lengths"
        fit = f"{each.quantity} ~ L^{figures.as_exponent(each.exponent)}"
        told = f"  {figures.visible(each.implementation)}: {fit}, {each.passes}, {each.dtype}, {over}{claim(each)}"
        yield from wrap(told, width, subsequent_indent="    ")


def _findings(found: Sequence[Finding], width: int) -> Iterator[str]:
    """How many hold of each clause, and in full those that do not."""
    yield "clauses of chapter speed that only measurements can answer"
    for clause in dict.fromkeys(each.clause for each in found):
        counted = Counter(each.holds for each in found if each.clause == clause)
        told = ", ".join(f"{counted[holds]} {outcome(holds)}" for holds in (True, None, False) if counted[holds])
        yield from wrap(f"  {clause}: {told}", width, subsequent_indent="    ")
    for each in found:
        if each.holds is False:
            told = f"{outcome(each.holds)} {each.clause} [{each.where}]: {each.implementation}: {each.context}"
            yield from wrap(f"  {figures.visible(told)}", width, subsequent_indent="    ")


def outcome(holds: bool | None) -> str:
    """What becomes of a claim or a clause; failures are loud."""
    return {True: "holds", False: "DOES NOT HOLD", None: "undecided"}[holds]


def claim(growth: Growth) -> str:
    """What becomes of the exponent that is claimed, after a semicolon; "" without a claim."""
    if growth.claimed is None:
        return ""
    return f"; at most {growth.claimed:g}: {outcome(growth.holds)}"
