"""Stored runs: in the JSON that pytest-benchmark writes, under a key of our own."""

from __future__ import annotations

import json
from pathlib import Path

from attention_conformance.tests.benchmarks.record import Run

KEY = "attention"
"""Under which the file of pytest-benchmark holds the run."""


def run_of(path: Path) -> Run:
    """The run that a file holds, which pytest-benchmark wrote, or `Run.to_json`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no run; the message names it and says what to give instead.
    """
    try:
        text = path.read_text(encoding="utf-8")
        held = json.loads(text)
        return Run.from_json(json.dumps(held[KEY]) if isinstance(held, dict) and KEY in held else text)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no benchmark run ({error}); give a file that `make bench` wrote") from error


def store(run: Run, path: Path) -> None:
    """Writes a run where pytest-benchmark will write it, with the rest, at its end: so far it is not complete."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_text(json.dumps({KEY: json.loads(run.to_json()), "benchmarks": []}) + "\n", encoding="utf-8")
    unfinished.replace(path)
