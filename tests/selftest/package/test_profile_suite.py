"""The profile of the suite's own time: what it watches is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_stage_that_it_watches_is_there() -> None:
    """In a process of its own: the clocks stay in."""
    program = "from attention_conformance.tests.measurements.suite_profile import Stages, watched; watched(Stages())"
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert process.returncode == 0, process.stderr
