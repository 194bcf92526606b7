"""The page of a run, written from the JSON of a benchmark: one file that needs no network."""

from __future__ import annotations

import argparse
import base64
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup

from attention_conformance.tests.benchmarks import figures
from attention_conformance.tests.benchmarks.plots import CHOICES, COLOURS, SHAPES, named, plots
from attention_conformance.tests.benchmarks.record import Finding, Growth, Measurement, Run, Speed
from attention_conformance.tests.benchmarks.stored import run_of
from attention_conformance.tests.benchmarks.table import claim, outcome

ASSETS = Path(__file__).parent / "assets"
SHADES = dict.fromkeys(Speed, "bad") | dict.fromkeys((Speed.SAME, Speed.BASELINE, Speed.UNSUPPORTED), "")
SHADES[Speed.FASTER] = "good"
UNUSABLE = 4
"""Exit status where the input cannot be read or the page not be written."""


def page(run: Run) -> str:
    """The HTML page of a run; whatever text the run holds is shown as text."""
    loader = jinja2.FileSystemLoader(ASSETS)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    scripts = [_script(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")), _script(_asset("page.js"))]
    drawn = plots(run)
    return environment.get_template("page.html").render(
        run=run,
        figures=figures,
        noise=figures.noises(run.measurements),
        choices={name: _values(run, name) for name in CHOICES},
        legend={each["name"]: each for each in _legend(run)},
        shapes=SHAPES,
        plots=drawn,
        rows=list(map(_row, run.measurements)),
        findings=[{"of": each, "outcome": outcome(each.holds)} for each in sorted(run.findings, key=_loudness)],
        growths=list(map(_growth, run.growths)),
        style=Markup(_asset("page.css")),
        scripts=scripts,
        allowed=" ".join(map(_fingerprint, scripts)),
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _script(text: str) -> Markup:
    """A script of ours or of the library, not of the run: it must not end its own element."""
    if "</script" in text.lower() or "<!--" in text:
        raise ValueError("a script of the page contains </script or <!--, which would end or hide it")
    return Markup(text)


def _fingerprint(script: str) -> str:
    """By which the page's security policy allows this script, and with it no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _values(run: Run, name: str) -> list[str]:
    """What there is to choose from, in order of appearance."""
    return list(dict.fromkeys(getattr(each, name) for each in run.measurements))


def _legend(run: Run) -> Iterator[dict[str, Any]]:
    for number, name in enumerate(named(run)):
        yield {
            "name": name,
            "shown": figures.visible(name),
            "colour": number % COLOURS,
            "shape": number % len(SHAPES),
        }


def _row(found: Measurement) -> dict[str, Any]:
    """A row of the table: attributes to filter by, and cells as pairs (number to sort by, text)."""
    counts = figures.counts(found)
    middle, around = figures.with_quartiles(found.seconds) if counts else (figures.NOTHING, "")
    speed = found.speed if counts else None
    share, memory = (figures.share_of_floor(found), figures.memory_of(found)) if counts else (None, None)
    first = found.first_call if counts else None
    worst = figures.in_bounds(found.worst)
    return {
        "of": found,
        "name": figures.visible(found.implementation),
        "shade": SHADES.get(found.verdict, ""),
        "choices": {name: getattr(found, name) for name in CHOICES},
        "cells": [
            (figures.time_of(found) if counts else None, middle + " *" * found.adapter, around),
            (speed.value if speed else None, *_ratio(found)),
            (share, figures.in_percent(share), ""),
            (memory, figures.in_bytes(memory), ""),
            (first, figures.in_seconds(first), ""),
            (found.worst, worst, ""),
        ],
    }


def _ratio(found: Measurement) -> tuple[str, str]:
    """The ratio, and its interval."""
    value, _, interval = figures.as_ratio(found.speed if figures.counts(found) else None).partition(" ")
    return value, interval


def _loudness(found: Finding) -> int:
    return (False, None, True).index(found.holds)


def _growth(found: Growth) -> dict[str, Any]:
    return {
        "of": found,
        "name": figures.visible(found.implementation),
        "exponent": figures.as_exponent(found.exponent),
        "claim": claim(found).removeprefix("; "),
        "lengths": f"{found.lengths[0]} to {found.lengths[-1]}" if found.lengths else figures.NOTHING,
    }


def main(arguments: list[str] | None = None) -> int:
    """Writes the page; 4 where the file cannot be read or written, and one line says why."""
    parser = argparse.ArgumentParser(prog="python -m attention_conformance.tests.benchmarks.page", description=__doc__)
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
