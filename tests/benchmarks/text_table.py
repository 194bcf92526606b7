"""The terminal table of a run: one block for each workload, one line for each implementation."""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from textwrap import wrap

from attention_conformance.tests.benchmarks import formatting
from attention_conformance.tests.benchmarks.benchmark_run import ClauseResult, Growth, Measurement, Run

COLUMNS = ("time", "quartiles", "x baseline", "floor", "memory", "worst", "verdict")
WIDTHS = (8, 12, 20, 5, 7, 5, 13)
"""Of the columns after the name: two spaces before the first, one before the others."""
LEFT = {"quartiles", "verdict"}
SPACES = 2 + 2 + len(WIDTHS) - 1
NARROWEST = 12
"""Width of the column of names: with less space, or for a longer name, the name has a line of its own."""
LEGEND = (
    "x baseline: 2 is twice as fast, with its 95 % interval; floor: the machine's least time / this one;"
    " memory: peak of one call; worst: largest error in units of its rounding bound; *: with the adapter's cost"
)


def lines(run: Run, width: int | None = None) -> Iterator[str]:
    """The lines of the table, readable without colour; the width is 80 at least, by default that of the terminal."""
    width = width or shutil.get_terminal_size((100, 24)).columns
    if not run.complete:
        yield "INCOMPLETE: this run was interrupted, and results are missing"
    yield from _head(run, width)
    for _, block in groupby(run.measurements, key=lambda each: (each.setting, each.sizes)):
        yield ""
        yield from _workload(list(block), width)
    if run.growths:
        yield ""
        yield from _growths(run.growths, width)
    if run.clause_results:
        yield ""
        yield from _clause_results(run.clause_results, width)
    if run.measurements:
        yield ""
        yield from wrap(LEGEND, width)


def _head(run: Run, width: int) -> Iterator[str]:
    machine, rates = run.machine, run.rates
    threads = f"{machine.threads} thread{'s' * (machine.threads != 1)}"
    room = formatting.in_bytes(machine.memory)
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    texts = [f"{machine.device}: {machine.processor}, {machine.cores} cores, {room}; {threads}; {versions}"]
    products = ", ".join(f"{dtype} {formatting.in_rate(rate, 'FLOP')}" for dtype, rate in rates.matmul.items())
    texts.append(f"matrix products {products}; copies {formatting.in_rate(rates.bandwidth, 'B')}")
    texts.append(f"noise {formatting.noises(run.measurements) or 'not measured'}; started {run.started}")
    texts += [f"NOT RUN: {why}" for why in run.absent.values()]
    for each in texts:
        yield from wrap(formatting.visible(each), width, subsequent_indent="  ")


def _workload(block: Sequence[Measurement], width: int) -> Iterator[str]:
    first = block[0]
    sizes = " ".join(f"{name}={size}" for name, size in first.sizes.items())
    title = f"{first.workload}: {first.level}, {first.passes}, {first.dtype} on {first.device}; {sizes}"
    noise = formatting.noises(block)
    yield from wrap(formatting.visible(title), width, subsequent_indent="  ")
    yield from wrap(formatting.visible(f"  baseline {first.baseline}{noise and f', noise {noise}'}"), width)
    names = _name_width(block, width - sum(WIDTHS) - SPACES)
    yield f"  {'':{names}}  {_cells(COLUMNS)}".rstrip()
    for each in block:
        yield from _line(each, names, width)


def _name_width(block: Sequence[Measurement], left: int) -> int:
    """The width of the column of names: that of the longest name that fits into the rest of the line."""
    fitting = [len(_name(each)) for each in block if len(_name(each)) <= left]
    return max([NARROWEST, *fitting]) if left >= NARROWEST else 0


def _name(measurement: Measurement) -> str:
    return formatting.visible(measurement.implementation)


def _line(measurement: Measurement, names: int, width: int) -> Iterator[str]:
    name = _name(measurement)
    if len(name) > names:
        yield from wrap(name, width, initial_indent="  ", subsequent_indent="    ")
        name = ""
    lead = f"  {name:{names}}  "
    if formatting.counts(measurement):
        yield f"{lead}{_cells(_figures(measurement))}".rstrip()
        return
    reason = f"{measurement.verdict}: {formatting.visible(measurement.reason) or 'no reason is known'}"
    for number, line in enumerate(wrap(reason, width - len(lead))):
        yield f"{' ' * len(lead) if number else lead}{line}"


def _figures(measurement: Measurement) -> tuple[str, ...]:
    middle, around = formatting.with_quartiles(measurement.seconds)
    ratio = formatting.as_ratio(measurement.speed)
    share = formatting.in_percent(formatting.share_of_floor(measurement))
    worst = formatting.in_bounds(measurement.worst)
    memory = formatting.in_bytes(formatting.memory_of(measurement))
    return middle + "*" * measurement.adapter, around, ratio, share, memory, worst, str(measurement.verdict)


def _cells(texts: Sequence[str]) -> str:
    paired = zip(texts, COLUMNS, WIDTHS, strict=True)
    return " ".join(f"{cell:{'<' if name in LEFT else '>'}{width}}" for cell, name, width in paired)


def _growths(growths: Sequence[Growth], width: int) -> Iterator[str]:
    yield "growth with the length L, fitted"
    for each in growths:
        over = f"L {each.lengths[0]} .. {each.lengths[-1]}" if each.lengths else "no lengths"
        fit = f"{each.quantity} ~ L^{formatting.as_exponent(each.exponent)}"
        text = f"  {formatting.visible(each.implementation)}: {fit}, {each.passes}, {each.dtype}, {over}{claim(each)}"
        yield from wrap(text, width, subsequent_indent="    ")


def _clause_results(results: Sequence[ClauseResult], width: int) -> Iterator[str]:
    """The number of outcomes of each clause, and failures in full."""
    yield "clauses of chapter speed, checked by measurements"
    for clause in dict.fromkeys(each.clause for each in results):
        counted = Counter(each.holds for each in results if each.clause == clause)
        outcomes = ", ".join(f"{counted[holds]} {outcome(holds)}" for holds in (True, None, False) if counted[holds])
        yield from wrap(f"  {clause}: {outcomes}", width, subsequent_indent="    ")
    for each in results:
        if each.holds is False:
            text = f"{outcome(each.holds)} {each.clause} [{each.where}]: {each.implementation}: {each.context}"
            yield from wrap(f"  {formatting.visible(text)}", width, subsequent_indent="    ")


def outcome(holds: bool | None) -> str:
    """The outcome of a claim or a clause; failures are in capitals."""
    return {True: "holds", False: "DOES NOT HOLD", None: "undecided"}[holds]


def claim(growth: Growth) -> str:
    """The outcome of the claimed exponent, after a semicolon; "" without a claim."""
    return "" if growth.claimed is None else f"; at most {growth.claimed:g}: {outcome(growth.holds)}"
