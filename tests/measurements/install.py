"""`make wheel-check`: from nothing to the first verdict, in an empty environment and an empty folder; says how long."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from attention_conformance.tests.measurements.wheels import ROOT, build

CANDIDATE = """
from torch.nn.functional import scaled_dot_product_attention


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    return scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal, scale=scale)


def wrong(query, key, value):
    return 2 * attention(query, key, value)
"""


def main() -> int:
    """Exit status 0 if the command judges as it should."""
    with TemporaryDirectory() as scratch:
        here, project, empty = (Path(scratch) / name for name in ("here", "project", "empty"))
        for folder in (here, project, empty):
            folder.mkdir()
        (project / "mine.py").write_text(CANDIDATE)
        wheel, python = build(here), here / "environment" / "bin" / "python"
        command = str(python.with_name("attention-conformance"))
        pip = [
            str(python),
            "-m",
            "pip",
            "--quiet",
            "install",
            "--constraint",
            str(ROOT / "constraints.txt"),
            str(wheel),
        ]
        steps: list[tuple[str, Sequence[str], int]] = [
            ("an empty environment", [sys.executable, "-m", "venv", str(here / "environment")], 0),
            ("pip install of the wheel", pip, 0),
            ("the first verdict, one clause", [command, "check", f"{project}/mine.py:wrong", "--clause", "heads.*"], 1),
            ("the whole quick tier on a function", [command, "check", f"{project}/mine.py:attention"], 0),
            ("the clauses", [command, "list", "clauses"], 0),
        ]
        return max(_took(*step, empty) for step in steps)


def _took(name: str, command: Sequence[str], expected: int, folder: Path) -> int:
    start = time.perf_counter()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    print(f"{time.perf_counter() - start:6.1f} s  {name}")
    left = sorted(path.name for path in folder.iterdir())
    if done.returncode == expected and not left:
        return 0
    print(f"exit status {done.returncode}, not {expected}; left behind: {left}\n{done.stdout}{done.stderr}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
