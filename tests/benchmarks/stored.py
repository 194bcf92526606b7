"""Stored runs: what `Run.to_json` wrote."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.record import Run


def run_of(path: Path) -> Run:
    """The run that a file holds.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no run; the message names it and says what to give instead.
    """
    try:
        return Run.from_json(path.read_text(encoding="utf-8"))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no benchmark run ({error}); give a file that `make bench` wrote") from error
