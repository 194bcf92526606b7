"""The HTML page of a benchmark run: one file that needs no network."""

import argparse
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import vl_convert

from attention_conformance.tests.benchmarks import formatting
from attention_conformance.tests.benchmarks.benchmark_run import Growth, Measurement, Run, Speed, run_of
from attention_conformance.tests.benchmarks.plots import CHOICES, COLOURS, SHAPES, named, plots
from attention_conformance.tests.benchmarks.text_table import claim, outcome
from attention_conformance.tests.report.views.inline import fingerprint, inline

ASSETS = Path(__file__).parent / "assets"
SHADES = dict.fromkeys(Speed, "bad") | dict.fromkeys((Speed.SAME, Speed.BASELINE, Speed.UNSUPPORTED), "")
SHADES[Speed.FASTER] = "good"
UNUSABLE = 4
"""Exit status where the input cannot be read or the page not be written."""


def page(run: Run) -> str:
    """The HTML page of a run; every text of the run is escaped."""
    loader = jinja2.FileSystemLoader(ASSETS)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    scripts = [inline(text, "script") for text in (_library(), (ASSETS / "page.js").read_text(encoding="utf-8"))]
    order = (False, None, True).index  # failures first
    results = sorted(run.clause_results, key=lambda each: order(each.holds))
    return environment.get_template("page.html").render(
        run=run,
        formatting=formatting,
        noise=formatting.noises(run.measurements),
        choices={name: list(dict.fromkeys(getattr(each, name) for each in run.measurements)) for name in CHOICES},
        legend={
            name: {"name": name, "shown": formatting.visible(name), "colour": n % COLOURS, "shape": n % len(SHAPES)}
            for n, name in enumerate(named(run))
        },
        shapes=SHAPES,
        plots=plots(run),
        rows=list(map(_row, run.measurements)),
        clause_results=[{"of": each, "outcome": outcome(each.holds)} for each in results],
        growths=list(map(_growth, run.growths)),
        style=inline((ASSETS / "page.css").read_text(encoding="utf-8"), "style"),
        scripts=scripts,
        allowed=" ".join(map(fingerprint, scripts)),
    )


@cache
def _library() -> str:
    """Vega-Lite as a script, which is put together anew each time it is wanted."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def _row(measurement: Measurement) -> dict[str, Any]:
    """A row of the table: attributes to filter by, and cells (number to sort by, text, smaller text)."""
    return {
        "of": measurement,
        "name": formatting.visible(measurement.implementation),
        "shade": SHADES.get(measurement.verdict, ""),
        "choices": {name: getattr(measurement, name) for name in CHOICES},
        "cells": [
            *(_speed_cells(measurement) if formatting.counts(measurement) else [(None, formatting.NOTHING, "")] * 5),
            (measurement.worst, formatting.in_bounds(measurement.worst), ""),
        ],
    }


def _speed_cells(measurement: Measurement) -> list[tuple[float | None, str, str]]:
    """Time, ratio to the baseline with its interval, share of the floor, memory and first call."""
    middle, around = formatting.with_quartiles(measurement.seconds)
    ratio, _, interval = formatting.as_ratio(measurement.speed).partition(" ")
    share, memory = formatting.share_of_floor(measurement), formatting.memory_of(measurement)
    return [
        (formatting.time_of(measurement), middle + " *" * measurement.adapter, around),
        (measurement.speed.value if measurement.speed else None, ratio, interval),
        (share, formatting.in_percent(share), ""),
        (memory, formatting.in_bytes(memory), ""),
        (measurement.first_call, formatting.in_seconds(measurement.first_call), ""),
    ]


def _growth(growth: Growth) -> dict[str, Any]:
    return {
        "of": growth,
        "name": formatting.visible(growth.implementation),
        "exponent": formatting.as_exponent(growth.exponent),
        "claim": claim(growth).removeprefix("; "),
        "lengths": f"{growth.lengths[0]} to {growth.lengths[-1]}" if growth.lengths else formatting.NOTHING,
    }


def main(arguments: list[str] | None = None) -> int:
    """Writes the page; 4, with a message of one line, if a file cannot be read or written."""
    parser = argparse.ArgumentParser(f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("input", type=Path, metavar="BENCH.json", help="a run, or what pytest-benchmark stored")
    parser.add_argument("output", type=Path, metavar="OUT.html")
    options = parser.parse_args(arguments)
    try:
        run = run_of(options.input)
        options.output.write_text(page(run), encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return UNUSABLE
    print(f"written: {options.output} ({options.output.stat().st_size / 1e6:.2f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
