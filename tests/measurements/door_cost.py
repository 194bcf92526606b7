"""What a process of its own costs: the quick tier on four candidates, with and without one.

`make door-cost` prints the table. Both ways are run in turn, so that other work on the machine meets both alike.
"""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from attention_conformance.implementations.worker.serve import ADOPT
from attention_conformance.tests.harness.run.exit_status import ExitStatus

EVERYTHING = """
from attention_conformance import Claims, Implementation, Scope, torch_op
from attention_conformance.implementations.builtin.stepwise.steps import OP_FEATURES, Steps
from attention_conformance.spec.case_options import CASE_OPTIONS
from attention_conformance.spec.features import Feature

OF_MODULES = {Feature.DROPOUT, Feature.EVALUATION, Feature.CACHE, Feature.BIAS_KV}
OF_STORED_KEYS = {Feature.PAGED, Feature.CACHE_ROWS, Feature.QUANTISED, Feature.LATENT}
OPTIONS = {option.feature for option in CASE_OPTIONS} - OF_MODULES - OF_STORED_KEYS
everything = Implementation("everything", Claims(Scope.OP, OP_FEATURES | OPTIONS), torch_op(Steps()))
"""
FILE = "everything.py"
TARGETS: dict[str, tuple[str, ...]] = {
    "torch.nn.functional:scaled_dot_product_attention": (),
    "torch.nn:MultiheadAttention": (),
    f"{FILE}:everything": (),
    # JAX compiles for each shape and dtype anew, wherever it is called: one dtype shows what the door costs.
    "jax.nn:dot_product_attention": ("--dtype", "float32"),
}
"""What is judged, and with which options."""
WAYS = {"in the judge's process": ("--in-process",), "through the door": ()}
ROUNDS = 3


@dataclass(frozen=True)
class Cost:
    """Seconds of one run.

    Attributes:
        wall: from the command to the prompt.
        judge: CPU time of the judge's process.
        candidate: CPU time of all other processes: the candidate's, and the one that has imported what it needs.
    """

    wall: float
    judge: float
    candidate: float


def cost(target: str, options: tuple[str, ...], folder: Path) -> Cost:
    """That of one run, all of whose processes are waited for.

    Raises:
        RuntimeError: the candidate was not judged.
    """
    command = [sys.executable, "-m", "attention_conformance", "check", target, *options]
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, judge = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (ExitStatus.CONFORMS, ExitStatus.FAILS):
        raise RuntimeError(f"{' '.join(command)} ends with status {process.returncode}")
    others = 0.0
    with suppress(ChildProcessError):
        while True:
            used = os.wait3(0)[2]
            others += used.ru_utime + used.ru_stime
    return Cost(wall, judge.ru_utime + judge.ru_stime, others)


def rows(rounds: int, folder: Path) -> Iterator[str]:
    """The table, a line for each candidate and way."""
    (folder / FILE).write_text(EVERYTHING, encoding="utf-8")
    for target, limits in TARGETS.items():
        runs = [[cost(target, (*limits, *way), folder) for way in WAYS.values()] for _ in range(rounds)]
        for way, costs in zip(WAYS, zip(*runs, strict=True), strict=True):
            figures = [
                [each.wall for each in costs],
                [each.judge for each in costs],
                [each.candidate for each in costs],
            ]
            name = " ".join([target.rpartition(":")[2], *limits])
            yield f"| {name} | {way} | {' | '.join(f'{median(each):.1f}' for each in figures)} |"


def main() -> None:
    ctypes.CDLL(None).prctl(ADOPT, 1)  # processes whose parent has ended are waited for here
    with TemporaryDirectory() as folder:
        print(
            "| candidate | called | wall | CPU of the judge | of other processes |\n| --- | --- | ---: | ---: | ---: |"
        )
        for row in rows(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS, Path(folder)):
            print(row, flush=True)


if __name__ == "__main__":
    main()
