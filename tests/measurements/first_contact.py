"""How long a new user waits for the first verdict, step by step: from a clone, or from a wheel.

`make first-contact` clones the current commit into an empty folder, installs it as `make conformance` does, and checks
the function of the README with the README's command: as it is, wrong, and repaired. `make wheel-check` builds the
wheel, installs it into an empty environment, and runs the command in an empty folder. Both take minutes. The exit
status is 1 if a step does not end as expected.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from attention_conformance.tests.measurements.wheels import ROOT, build

FILE = "my_attention.py"
WRONG, RIGHT = "triu(2)", "triu(1)"
TIME_LIMIT = 1_800
"""Seconds of a step."""
CANDIDATE = """
from torch.nn.functional import scaled_dot_product_attention


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    return scaled_dot_product_attention(query, key, value, attn_mask, is_causal=is_causal, scale=scale)


def wrong(query, key, value):
    return 2 * attention(query, key, value)
"""


@dataclass(frozen=True)
class Step:
    """A command of the user.

    Attributes:
        folder: in which it runs.
        status: its expected exit status.
        output: expected text within its output.
        writes: the content of `FILE` in the folder, if the step begins by writing it.
        leaves_nothing: True if the folder has to be empty afterwards.
    """

    name: str
    command: Sequence[str]
    folder: Path
    status: int = 0
    output: str = ""
    writes: str = ""
    leaves_nothing: bool = False


def main() -> None:
    """Prints the seconds of each step, and of all steps so far."""
    parser = argparse.ArgumentParser(f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("source", choices=STEPS)
    steps, total = STEPS[parser.parse_args().source], 0.0
    print(f"{os.cpu_count()} cores, {os.getloadavg()[0]:.1f} active processes before")
    with TemporaryDirectory() as folder:
        for step in steps(Path(folder)):
            seconds = seconds_of(step)
            total += seconds
            print(f"{seconds:8.1f} s  {total:8.1f} s in all  {step.name}", flush=True)


def clone_steps(scratch: Path) -> Iterator[Step]:
    """From a clone to the verdicts."""
    readme, clone = (ROOT / "README.md").read_text(encoding="utf-8"), scratch / "clone"
    source = first_match(rf"```python\n(# {FILE}\n.*?)```", readme)
    check = first_match(rf"\$ (\S+ check {FILE}:.*?)\n", readme)
    command = shlex.split(check)
    yield Step("the clone, from this disk", ["git", "clone", "--quiet", str(ROOT), str(clone)], scratch)
    yield Step("a virtual environment", [sys.executable, "-m", "venv", ".venv"], clone)
    yield Step("the installation", ["make", f"PYTHON={sys.executable}", ".venv/.ready"], clone)
    yield Step(f"a wrong function: {check}", command, clone, 1, "fails", writes=source)
    yield Step("the same, once more", command, clone, 1, "fails")
    yield Step("the function repaired", command, clone, 0, "conforms", writes=source.replace(WRONG, RIGHT))


def wheel_steps(scratch: Path) -> Iterator[Step]:
    """From the wheel, in an empty environment, to the verdicts in an empty folder."""
    here, project, empty = (scratch / name for name in ("here", "project", "empty"))
    for folder in (here, project, empty):
        folder.mkdir()
    (project / FILE).write_text(CANDIDATE)
    wheel, python = build(here), here / "environment" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--quiet", "install", "--constraint", str(ROOT / "constraints.txt"), str(wheel)]
    yield Step("an empty environment", [sys.executable, "-m", "venv", str(here / "environment")], here)
    yield Step("pip install of the wheel", pip, here)
    for name, status, *arguments in (
        ("the first verdict, one clause", 1, "check", f"{project / FILE}:wrong", "--clause", "heads.*"),
        ("the quick tier on a function", 0, "check", f"{project / FILE}:attention"),
        ("the clauses", 0, "list", "clauses"),
    ):
        command = [str(python.with_name("attention-conformance")), *arguments]
        yield Step(name, command, empty, status, leaves_nothing=True)


STEPS = {"clone": clone_steps, "wheel": wheel_steps}


def first_match(pattern: str, readme: str) -> str:
    """The first group of a pattern in the README."""
    match = re.search(pattern, readme, re.DOTALL)
    if match is None:
        sys.exit(f"ERROR: README.md shows nothing that matches {pattern!r}")
    return match[1]


def seconds_of(step: Step) -> float:
    """The seconds of a step; if it does not end as expected, the program ends with its output and exit status 1."""
    if step.writes:
        (step.folder / FILE).write_text(step.writes, encoding="utf-8")
    since = time.perf_counter()
    try:
        ended = subprocess.run(step.command, cwd=step.folder, capture_output=True, text=True, timeout=TIME_LIMIT)
    except (OSError, subprocess.TimeoutExpired) as error:
        sys.exit(f"ERROR: {step.name}: {error}")
    seconds = time.perf_counter() - since
    if ended.returncode != step.status or step.output not in ended.stdout:
        printed = (ended.stdout + ended.stderr)[-2_000:]
        sys.exit(f"ERROR: {step.name}: exit status {ended.returncode}, expected {step.status}\n{printed}")
    if step.leaves_nothing and (left := sorted(path.name for path in step.folder.iterdir())):
        sys.exit(f"ERROR: {step.name}: left files behind: {', '.join(left)}")
    return seconds


if __name__ == "__main__":
    main()
