"""How long a stranger takes from a clone to the first verdict on a file of their own, step by step.

`make first-contact` clones the current commit into an empty folder, sets it up as `make conformance`
does, and judges the function of the README with the README's command: as it is, wrong, and repaired. It takes minutes.
Exit status 1 where a step does not end as the README says it does.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = "my_attention.py"
WRONG, RIGHT = "triu(2)", "triu(1)"
TIME_LIMIT = 1_800
"""Seconds that a step may take."""


class StepError(Exception):
    """A step that does not end as it should; the message ends with what was printed."""


@dataclass(frozen=True)
class Step:
    """What a stranger does.

    Attributes:
        writes: the content of `FILE`, if the step begins by writing it.
        status, says: how it has to end, and what it has to print.
    """

    does: str
    command: Sequence[str]
    writes: str = ""
    status: int = 0
    says: str = ""


def main() -> int:
    """Prints the seconds of each step, and of all up to the first verdict."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    total = 0.0
    print(f"{os.cpu_count()} cores, {os.getloadavg()[0]:.1f} processes at work before")
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        try:
            for step in steps(readme, clone):
                seconds = taken(step, clone)
                total += seconds
                print(f"{seconds:8.1f} s  {total:8.1f} s in all  {step.does}", flush=True)
        except StepError as error:
            print(f"ERROR: {error}", file=sys.stderr)
            return 1
    return 0


def steps(readme: str, clone: Path) -> Iterator[Step]:
    """From nothing to the verdicts.

    Raises:
        StepError: the README shows no such file or command.
    """
    source, check = found(rf"```python\n(# {FILE}\n.*?)```", readme), found(rf"\$ (\S+ check {FILE}:.*)", readme)
    command = shlex.split(check)
    yield Step("the clone, from this disk", ["git", "clone", "--quiet", str(ROOT), str(clone)])
    yield Step("a virtual environment", [sys.executable, "-m", "venv", ".venv"])
    yield Step("the installation", ["make", f"PYTHON={sys.executable}", ".venv/.ready"])
    yield Step(f"a wrong function: {check}", command, source, 1, "fails")
    yield Step("the same, once more", command, "", 1, "fails")
    yield Step("the function repaired", command, source.replace(WRONG, RIGHT), 0, "conforms")


def found(pattern: str, readme: str) -> str:
    """The first group of a pattern in the README."""
    match = re.search(pattern, readme, re.DOTALL if "```" in pattern else 0)
    if match is None:
        raise StepError(f"README.md shows nothing that matches {pattern!r}")
    return match[1]


def taken(step: Step, clone: Path) -> float:
    """The seconds of a step.

    Raises:
        StepError: it ended otherwise than it should.
    """
    if step.writes:
        (clone / FILE).write_text(step.writes, encoding="utf-8")
    since = time.perf_counter()
    try:
        ended = subprocess.run(
            step.command, cwd=clone if clone.exists() else None, capture_output=True, text=True, timeout=TIME_LIMIT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StepError(f"{step.does}: {error}") from None
    seconds = time.perf_counter() - since
    if ended.returncode != step.status or step.says not in ended.stdout:
        printed = (ended.stdout + ended.stderr)[-2_000:]
        raise StepError(f"{step.does}: exit status {ended.returncode}, expected {step.status}\n{printed}")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
